"""
The page: conversations, approvals and timelines in a browser, beside the protocols of the server.

The page is plain HTML, CSS and ES modules in `static/`, which a browser runs as they are. It speaks
the HTTP API of this server alone, and knows no more than any other client.

- `routes`: serves the files, with the headers that keep the page shut.
- `timeline`: a turn on an axis of time. `replays`: stored turns that run again. `compact` and
  `clip`: event streams and texts cut to what a page shows. `budgets`: accounts of people.
- `static/main.js`: begins; each other module there begins with its purpose.

Exports: `ui_page`. Read `routes`, `static/main.js`, `static/conversation.js`.
"""

from __future__ import annotations

from looopy.server.page.routes import ui_page as ui_page

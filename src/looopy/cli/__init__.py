"""The command line: `looopy chat`, and a look at what a database holds. Nothing imports it."""

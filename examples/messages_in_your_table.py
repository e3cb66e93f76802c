"""Messages in a table of your application, which is a model of SQLAlchemy."""

import asyncio
import os
import tempfile
from typing import Any

from sqlalchemy import JSON, create_engine, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from looopy import Agent, Message, Stores, message_to_json
from looopy.testing import ScriptedProvider, text


class Base(DeclarativeBase):
    """The models of the application."""


class ChatMessage(Base):
    """A message, as the pages of the application show it."""

    __tablename__ = "chat_messages"
    chat: Mapped[str] = mapped_column(primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    role: Mapped[str]
    body: Mapped[dict[str, Any]] = mapped_column(JSON)


class ChatTable:
    """The table, with the two methods of a message store."""

    def __init__(self, url: str) -> None:
        self.engine = create_engine(url)
        Base.metadata.create_all(self.engine)

    def append(self, context_id: str, messages: list[Message], position: int) -> None:
        """Insert rows, all or none; the primary key takes no position twice."""
        with Session(self.engine) as session, session.begin():
            for n, one in enumerate(messages, position):
                body = message_to_json(one)
                session.add(ChatMessage(chat=context_id, position=n, role=one.role, body=body))

    def list(self, context_id: str) -> list[dict[str, Any]]:
        """Select the rows, in order."""
        query = select(ChatMessage.body).where(ChatMessage.chat == context_id)
        with Session(self.engine) as session:
            return list(session.scalars(query.order_by(ChatMessage.position)))


async def main() -> None:
    """Say two things."""
    model = os.environ.get("LOOOPY_MODEL") or ScriptedProvider(lambda _: text("Hello!"))
    table = ChatTable(f"sqlite:///{tempfile.mkdtemp()}/app.db")
    async with Stores.of(table) as stores, Agent("a", llm_provider=model, stores=stores) as agent:
        await agent.execute_turn("Hi.")
    print([row["role"] for row in table.list("a")])


asyncio.run(main())

"""
Get an answer in a type: looopy checks it, and the model corrects it until it fits.

The first answer breaks a rule of the type, the second one does not. A model that knows output
schemas would get the schema. Any other model, such as this one, gets a tool for its answer.
"""

import asyncio
import os

from pydantic import BaseModel, Field

from looopy import Agent, tool
from looopy.errors import OutputInvalid
from looopy.testing import ScriptedProvider, tool_call


class Trip(BaseModel):
    """A planned trip."""

    town: str
    nights: int = Field(ge=1, le=14)
    sights: list[str] = []


@tool(effects="none")
def forecast(town: str) -> str:
    """Forecast the weather in a town."""
    return f"sunny in {town}"


SCRIPT = [
    tool_call("forecast", town="Rome"),
    tool_call("final_answer", town="Rome", nights=0),
    tool_call("final_answer", town="Rome", nights=3, sights=["Pantheon"]),
]


async def main() -> None:
    """Plan a trip."""
    model = os.environ.get("LOOOPY_MODEL") or ScriptedProvider(SCRIPT)
    async with Agent("trip", llm_provider=model, tools=[forecast]) as agent:
        turn = agent.execute_turn("Plan a few sunny days for me.", output_type=Trip)
        async for event in turn:
            if event.type == "warning":
                print(event.text.splitlines()[0])
        try:
            trip = (await turn).require_output()
        except OutputInvalid as error:
            print("no plan:", error)
        else:
            print(f"{trip.nights} nights in {trip.town}, with {trip.sights}")


asyncio.run(main())

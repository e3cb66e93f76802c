// Runs AG-UI's own client over recorded runs; JSON in, JSON out.
import { AbstractAgent } from "@ag-ui/client";
import { readFileSync } from "node:fs";
import { from } from "rxjs";

class Recorded extends AbstractAgent {
  run() {
    return from(this.next);
  }
}

const seen = [];
for (const runs of JSON.parse(readFileSync(0, "utf8"))) {
  const agent = new Recorded({ threadId: "c" });
  const after = [];
  for (const { events, says, resume } of runs) {
    agent.next = events;
    agent.addMessages(says);
    const errors = [];
    const onRunErrorEvent = ({ event }) => errors.push(event.message);
    try {
      await agent.runAgent({ runId: events[0].runId, resume }, { onRunErrorEvent });
    } catch (error) {
      errors.push(`THROWN ${error}`);
    }
    const interrupts = agent.pendingInterrupts.map((one) => one.id);
    after.push({ messages: structuredClone(agent.messages), interrupts, errors });
  }
  seen.push(after);
}
console.log(JSON.stringify(seen));

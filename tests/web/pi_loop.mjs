// Runs pi's own agent loop over a script, and says what it did: see test_pi_order.py.
import { agentLoop } from "@earendil-works/pi-agent-core";

const given = JSON.parse(await new Response(process.stdin).text());
const requests = [];
let polls = 0;

const answer = (blocks) => {
  const content = blocks.map((block, i) =>
    block.text === undefined
      ? { type: "toolCall", id: `${block.call}-${i}`, name: block.call, arguments: {} }
      : { type: "text", text: block.text },
  );
  const calls = content.some((block) => block.type === "toolCall");
  const stopReason = blocks.error ? "error" : calls ? "toolUse" : "stop";
  const message = { role: "assistant", content, stopReason, timestamp: 1 };
  return {
    async *[Symbol.asyncIterator]() {
      yield { type: "start", partial: { ...message, content: [] } };
      yield { type: "done", message };
    },
    result: async () => message,
  };
};

const textOf = (message) =>
  typeof message.content === "string"
    ? message.content
    : message.content.map((block) => block.text ?? block.name).join(",");
const user = (text) => ({ role: "user", content: text, timestamp: 1 });

// The tool `first` ends after `second`; the others end at once; `boom` fails.
let open;
const second = new Promise((resolve) => (open = resolve));
const run = {
  first: () => second,
  second: async () => setTimeout(open, 1),
  boom: async () => {
    throw new Error("it broke");
  },
};
const tools = given.tools.map((name) => ({
  name,
  label: name,
  description: name,
  parameters: { type: "object", properties: {} },
  execute: async () => {
    await run[name]?.();
    return { content: [{ type: "text", text: `${name} done` }], details: {} };
  },
}));

const script = given.script.map(answer);
const stream = agentLoop(
  [user("go")],
  { messages: [], tools },
  {
    model: { id: "m", provider: "p", api: "a" },
    toolExecution: given.mode,
    convertToLlm: (messages) => messages.filter((message) => message.role !== "system"),
    getSteeringMessages: async () => {
      const text = given.steer[polls++];
      return text === undefined ? [] : [user(text)];
    },
    getFollowUpMessages: async () => given.follow.splice(0, 1).map(user),
  },
  undefined,
  (_model, context) => {
    requests.push(context.messages.map((message) => [message.role, textOf(message)]));
    return script.shift();
  },
);

const events = [];
for await (const event of stream) {
  if (event.type === "message_update") continue;
  const about = event.message?.role ?? event.toolName;
  events.push(about && event.type !== "turn_end" ? `${event.type} ${about}` : event.type);
}
const last = await stream.result();
const added = last.map((message) => [message.role, textOf(message)]);
const declared = last
  .filter((message) => message.role === "system")
  .map((message) => message.toolsAdded.map((tool) => tool.name));
console.log(JSON.stringify({ events, polls, requests, added, declared }));

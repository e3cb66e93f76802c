// Clients that say `act` once and ask again: AG-UI's, the AI SDK's chat, and OpenAI's SDK, which does
// so by itself. The input tells, line by line, when to go on; the output has a line of JSON for each.
import { HttpAgent } from "@ag-ui/client";
import { Chat } from "@ai-sdk/react";
import { DefaultChatTransport, readUIMessageStream } from "ai";
import OpenAI from "openai";
import { createInterface } from "node:readline";

const [client, url, id] = process.argv.slice(2);
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const told = async () => (await lines.next()).value;
process.on("unhandledRejection", () => {}); // AG-UI's client leaves one when its stream breaks
const say = (value) => console.log(JSON.stringify(value));

async function agUi() {
  const agent = new HttpAgent({ url: `${url}/ag-ui`, threadId: id });
  agent.addMessage({ id: "u-1", role: "user", content: "act" });
  const first = agent.runAgent().catch((error) => error);
  if ((await told()) === "abort") agent.abortRun();
  await first;
  say("broken");
  for (let line = await told(); line; line = await told()) {
    agent.setMessages(agent.messages.slice(0, 1));
    const asked = line === "regenerate" ? { forwardedProps: { looopy: { again: true } } } : {};
    try {
      await agent.runAgent(asked);
      say(agent.messages.filter((one) => one.role === "assistant").at(-1).content);
    } catch (error) {
      say(error.payload?.error.message ?? String(error));
    }
  }
}

async function aiSdk() {
  const transport = new DefaultChatTransport({ api: `${url}/api/chat` });
  const chat = new Chat({ id, transport });
  const text = (message) => message.parts.filter((one) => one.type === "text").at(-1)?.text;
  const first = chat.sendMessage({ text: "act" });
  if ((await told()) === "abort") await chat.stop();
  await first;
  say("broken");
  const messages = chat.messages.slice(0, 1);
  for (let line = await told(); line; line = await told()) {
    let last = null;
    if (line === "again") {
      const again = { chatId: id, messages, trigger: "submit-message" };
      const stream = await transport.sendMessages(again);
      for await (const message of readUIMessageStream({ stream })) last = message;
    } else {
      await (line === "continue" ? chat.sendMessage() : chat.regenerate());
      last = chat.lastMessage;
    }
    say(chat.error?.message ?? text(last));
  }
}

async function openAi() {
  const counted = (...request) => {
    say("attempt");
    return fetch(...request);
  };
  const options = { baseURL: `${url}/v1`, apiKey: "x", fetch: counted, maxRetries: 8 };
  const sdk = new OpenAI({ ...options, timeout: Number(process.argv[5]) });
  const conversation = id === "none" ? undefined : id;
  say((await sdk.responses.create({ model: "looopy", input: "act", conversation })).output_text);
}

await { "ag-ui": agUi, "ai-sdk": aiSdk, openai: openAi }[client]();
process.exit(0);

// A person decides a request of somebody else with AG-UI's client, or the AI SDK's chat that sends by
// itself. The output has the decision or the error, and how many requests were sent.
import { HttpAgent } from "@ag-ui/client";
import { Chat } from "@ai-sdk/react";
import { DefaultChatTransport, lastAssistantMessageIsCompleteWithApprovalResponses } from "ai";
import { readFileSync } from "node:fs";

const { client, url, token, context, request, approved } = JSON.parse(readFileSync(0, "utf8"));
const headers = { Authorization: `Bearer ${token}` };

async function agUi() {
  const agent = new HttpAgent({ url: `${url}/ag-ui`, threadId: context, headers });
  const seen = [];
  const onCustomEvent = ({ event }) => void seen.push(event);
  const resume = [{ interruptId: request, status: "resolved", payload: { approved } }];
  try {
    await agent.runAgent({ resume }, { onCustomEvent });
  } catch (error) {
    return { error: error.payload?.error.message ?? String(error), sent: 1 };
  }
  const [{ name, value }] = seen;
  return { said: `${name} ${value.decision}`, rest: agent.messages, sent: 1 };
}

async function aiSdk() {
  let sent = 0;
  const counted = (...asked) => {
    sent += 1;
    if (sent > 3) throw new Error("it sends for ever");
    return fetch(...asked);
  };
  const part = { type: "tool-pay", toolCallId: "one", input: {}, state: "approval-requested" };
  const asking = { id: "m", role: "assistant", parts: [{ ...part, approval: { id: request } }] };
  const chat = new Chat({
    id: context,
    messages: [asking],
    transport: new DefaultChatTransport({ api: `${url}/api/chat`, headers, fetch: counted }),
    sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithApprovalResponses,
  });
  await chat.addToolApprovalResponse({ id: request, approved });
  while (!["ready", "error"].includes(chat.status) || !sent) {
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
  if (chat.error) return { error: chat.error.message, sent };
  const [{ parts, metadata }] = chat.messages;
  const rest = parts.filter((one) => !["tool-pay", "step-start"].includes(one.type));
  return { said: `${parts[0].state} ${metadata.outcome}`, rest, sent };
}

console.log(JSON.stringify(await { "ag-ui": agUi, "ai-sdk": aiSdk }[client]()));
process.exit(0);

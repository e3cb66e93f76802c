// A page with AG-UI's HttpAgent: it opens the thread, shows its messages, and answers interrupts.
import { HttpAgent } from "@ag-ui/client";

const main = document.querySelector("main");
const agent = new HttpAgent({ url: "/ag-ui", threadId: location.search.slice(1) });
window.agent = agent;

function element(kind, text, act) {
  const made = document.createElement(kind);
  made.textContent = text;
  if (act) made.onclick = act;
  return made;
}

async function run(parameters = {}) {
  show("running");
  try {
    await agent.runAgent(parameters, { onMessagesChanged: () => show("running") });
    show("ready");
  } catch (error) {
    show("error", String(error));
  }
}

const input = document.createElement("input");
const send = element("button", "Send", () => {
  agent.addMessage({ id: crypto.randomUUID(), role: "user", content: input.value });
  run();
});

function show(status, error = "") {
  main.replaceChildren(
    ...agent.messages.map((message) => {
      const article = document.createElement("article");
      article.dataset.role = message.role;
      if (message.content) article.append(element("p", message.content));
      for (const call of message.toolCalls ?? []) {
        article.append(element("div", `${call.function.name} ${call.function.arguments}`));
      }
      return article;
    }),
    ...agent.pendingInterrupts.map(({ id }) =>
      element("button", "Approve", () =>
        run({ resume: [{ interruptId: id, status: "resolved", payload: { approved: true } }] }),
      ),
    ),
    element("output", status),
    element("span", error),
    input,
    send,
    element("button", "Continue", () => run()),
  );
}

await run();

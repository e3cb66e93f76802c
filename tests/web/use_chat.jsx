// A page with useChat: it loads the transcript, resumes a stream, and shows every part.
import { useChat } from "@ai-sdk/react";
import { DefaultChatTransport, lastAssistantMessageIsCompleteWithApprovalResponses } from "ai";
import { useState } from "react";
import { createRoot } from "react-dom/client";

const id = location.search.slice(1);

function Part({ part, approve }) {
  if (part.type === "text") return <p>{part.text}</p>;
  if (!part.type.startsWith("tool-")) return null;
  return (
    <div className="tool" data-state={part.state}>
      {part.type} {JSON.stringify(part.input)} {JSON.stringify(part.output)}
      {part.state === "approval-requested" && (
        <button onClick={() => approve(part.approval.id)}>Approve</button>
      )}
    </div>
  );
}

function Chat({ loaded }) {
  const [said, setSaid] = useState("");
  const chat = useChat({
    id,
    messages: loaded,
    resume: true,
    transport: new DefaultChatTransport({ api: "/api/chat" }),
    sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithApprovalResponses,
  });
  window.messages = chat.messages;
  const approve = (request) => chat.addToolApprovalResponse({ id: request, approved: true });
  const stop = () => fetch(`/api/chat/${id}/stop`, { method: "POST" });
  return (
    <>
      {chat.messages.map((message) => (
        <article key={message.id} data-role={message.role}>
          {message.parts.map((part, number) => (
            <Part key={number} part={part} approve={approve} />
          ))}
        </article>
      ))}
      <output>{chat.status}</output>
      <span role="alert">{chat.error?.message}</span>
      <input value={said} onChange={(event) => setSaid(event.target.value)} />
      <button onClick={() => chat.sendMessage({ text: said })}>Send</button>
      <button onClick={() => chat.sendMessage()}>Continue</button>
      <button onClick={stop}>Stop</button>
    </>
  );
}

const loaded = await fetch(`/api/chat/${id}`);
const messages = loaded.ok ? (await loaded.json()).messages : [];
createRoot(document.querySelector("main")).render(<Chat loaded={messages} />);

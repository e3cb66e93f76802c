// Folds streams of UI message chunks with the AI SDK's own client; JSON in, JSON out.
import { readUIMessageStream, uiMessageChunkSchema } from "ai";
import { readFileSync } from "node:fs";

const cases = JSON.parse(readFileSync(0, "utf8"));
const folded = [];
for (let { chunks, message } of cases) {
  const errors = [];
  const wrong = [];
  for (const chunk of chunks) {
    const checked = await uiMessageChunkSchema().validate(chunk);
    if (!checked.success) wrong.push([chunk, String(checked.error)]);
  }
  message ??= undefined;
  const stream = new ReadableStream({
    start(controller) {
      for (const chunk of chunks) controller.enqueue(chunk);
      controller.close();
    },
  });
  let last = message ?? null;
  const onError = (error) => errors.push(String(error));
  for await (const seen of readUIMessageStream({ stream, message, onError })) last = seen;
  folded.push({ message: last, errors, wrong });
}
console.log(JSON.stringify(folded));

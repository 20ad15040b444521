// Answers a question from documents, traced by OpenTelemetry's own instrumentation of the OpenAI client.
const { SpanStatusCode, trace } = require("@opentelemetry/api");
const { OpenAIInstrumentation } = require("@opentelemetry/instrumentation-openai");
const { startNodeSdk } = require("@opentelemetry/sdk-node");

// The SDK starts before the client is loaded, which it instruments. Texts travel as log records, beside the spans.
const sdk = startNodeSdk({ instrumentations: [new OpenAIInstrumentation({ captureMessageContent: true })] });
const { OpenAI } = require("openai");

const tracer = trace.getTracer("support-bot");
const client = new OpenAI();

/** Run a function in a span of its own, which ends with it. */
function within(name, attributes, run) {
  return tracer.startActiveSpan(name, { attributes }, async (span) => {
    try {
      return await run(span);
    } catch (error) {
      span.setStatus({ code: SpanStatusCode.ERROR, message: error.message });
      throw error;
    } finally {
      span.end();
    }
  });
}

function search(question) {
  const asked = { "gen_ai.operation.name": "retrieval", "gen_ai.retrieval.query.text": question };
  return within("retrieval handbook", asked, async (span) => {
    const documents = [
      { id: "faq-1", score: 0.9, content: "Parcels leave on Mondays." },
      { id: "faq-2", score: 0.5, content: "A parcel takes two days." },
    ];
    span.setAttribute("gen_ai.retrieval.documents", JSON.stringify(documents));
    return documents.map((one) => one.content).join("\n");
  });
}

function ask(question) {
  return within("ask", { "session.id": "session-1", "user.id": "user-1" }, async () => {
    const handbook = await search(question);
    const completion = await client.chat.completions.create({
      model: "gpt-6-luna",
      messages: [
        { role: "system", content: `Answer from the handbook:\n${handbook}` },
        { role: "user", content: question },
      ],
    });
    return completion.choices[0].message.content;
  });
}

ask(process.argv[2])
  .then(console.log)
  .finally(() => sdk.shutdown());

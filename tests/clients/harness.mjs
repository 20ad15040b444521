// Common part of the clients of Node.js, as harness.py is for Python: node with_NAME.mjs ROOT_URL
import { trace } from "@opentelemetry/api";
import { OTLPTraceExporter } from "@opentelemetry/exporter-trace-otlp-proto";
import { resourceFromAttributes } from "@opentelemetry/resources";
import { BatchSpanProcessor, NodeTracerProvider } from "@opentelemetry/sdk-trace-node";

export const root = process.argv[2];
export const ids = { "session.id": "session-1", "user.id": "user-1" };
export const system = "Be brief.";
export const question = "Where is my parcel?";
export const user = (content) => ({ role: "user", content });
export const turns = [user(question), { role: "assistant", content: "It is in Bern." }];
export const toolQuestion = "Where is parcel 7?";
export const retrievalQuestion = "When do parcels leave?";
export const typedQuestion = "Which city, and for how many days?";
export const errorQuestion = "Please fail.";
export const documents = [
  { id: "faq-1", text: "Parcels leave on Mondays.", score: 0.9, source: "faq.md" },
  { id: "faq-2", text: "A parcel takes two days.", score: 0.5, source: "faq.md" },
];
export const stuffed = `Documents:\n${documents.map(({ text }) => text).join("\n")}\n\nQuestion: ${retrievalQuestion}`;
export const track = async ({ number }) => `Parcel ${number} is in Bern.`;

export const exporter = new BatchSpanProcessor(new OTLPTraceExporter({ url: `${root}/v1/traces` }));

export const tracing = (...processors) => {
  const provider = new NodeTracerProvider({
    resource: resourceFromAttributes({ "service.name": "shop" }),
    spanProcessors: [exporter, ...processors],
  });
  provider.register();
  return provider;
};

export const request = (work, attributes) =>
  trace.getTracer("web").startActiveSpan("POST /ask", { attributes }, async (span) => {
    try {
      return await work();
    } finally {
      span.end();
    }
  });

// Each scenario is one work or several, each within the span of a request; `error` is the only one that may throw.
export async function run(scenarios, within) {
  for (const [name, scenario] of Object.entries(scenarios)) {
    await fetch(`${root}/scenario/${name}`, { method: "POST" });
    try {
      for (const work of [scenario].flat()) await within(work);
    } catch (error) {
      if (name !== "error") throw error;
    }
    await exporter.forceFlush();
  }
  await exporter.shutdown();
}

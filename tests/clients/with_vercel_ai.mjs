import { OpenTelemetry } from "@ai-sdk/otel";
import { registerTelemetry } from "ai";
import { ids } from "./harness.mjs";
import { run } from "./vercel_scenarios.mjs";

registerTelemetry(new OpenTelemetry());
await run({ telemetry: { functionId: "ask" } }, ids);

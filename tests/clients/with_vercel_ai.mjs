import { OpenTelemetry } from "@ai-sdk/otel";
import { registerTelemetry } from "ai";
import { run } from "./vercel_scenarios.mjs";

registerTelemetry(new OpenTelemetry());
await run({ telemetry: { functionId: "ask" } }, { "session.id": "session-1", "user.id": "user-1" });

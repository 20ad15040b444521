// Command main answers a question from documents, with spans of its own in OpenTelemetry's GenAI conventions.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"os"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

const model = "gpt-6-luna"

var tracer = otel.Tracer("support-bot")

type document struct {
	ID      string  `json:"id"`
	Score   float64 `json:"score"`
	Content string  `json:"content"`
}

type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

type completion struct {
	ID      string `json:"id"`
	Model   string `json:"model"`
	Choices []struct {
		Message message `json:"message"`
	} `json:"choices"`
	Usage struct {
		Input  int `json:"prompt_tokens"`
		Output int `json:"completion_tokens"`
	} `json:"usage"`
}

// text writes a value as JSON, which is how the conventions put structures into attributes.
func text(value any) string {
	written, err := json.Marshal(value)
	if err != nil {
		log.Print(err)
	}
	return string(written)
}

// parts writes messages in the form of gen_ai.input.messages.
func parts(messages ...message) string {
	var told []map[string]any
	for _, one := range messages {
		part := map[string]string{"type": "text", "content": one.Content}
		told = append(told, map[string]any{"role": one.Role, "parts": []any{part}})
	}
	return text(told)
}

func search(ctx context.Context, question string) []document {
	_, span := tracer.Start(ctx, "retrieval handbook")
	defer span.End()
	found := []document{{"faq-1", 0.9, "Parcels leave on Mondays."}, {"faq-2", 0.5, "A parcel takes two days."}}
	span.SetAttributes(
		attribute.String("gen_ai.operation.name", "retrieval"),
		attribute.String("gen_ai.retrieval.query.text", question),
		attribute.String("gen_ai.retrieval.documents", text(found)),
	)
	return found
}

func chat(ctx context.Context, messages ...message) (answer message, err error) {
	ctx, span := tracer.Start(ctx, "chat "+model, trace.WithSpanKind(trace.SpanKindClient))
	defer func() {
		if err != nil {
			span.SetStatus(codes.Error, err.Error())
		}
		span.End()
	}()
	span.SetAttributes(
		attribute.String("gen_ai.operation.name", "chat"),
		attribute.String("gen_ai.provider.name", "openai"),
		attribute.String("gen_ai.request.model", model),
		attribute.String("gen_ai.input.messages", parts(messages...)),
	)
	body := bytes.NewBufferString(text(map[string]any{"model": model, "messages": messages}))
	request, err := http.NewRequestWithContext(ctx, "POST", os.Getenv("OPENAI_BASE_URL")+"/chat/completions", body)
	if err != nil {
		return answer, err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Authorization", "Bearer "+os.Getenv("OPENAI_API_KEY"))
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return answer, err
	}
	defer response.Body.Close()
	var got completion
	if err = json.NewDecoder(response.Body).Decode(&got); err != nil {
		return answer, err
	}
	if len(got.Choices) == 0 {
		return answer, fmt.Errorf("no answer, status %s", response.Status)
	}
	answer = got.Choices[0].Message
	span.SetAttributes(
		attribute.String("gen_ai.response.id", got.ID),
		attribute.String("gen_ai.response.model", got.Model),
		attribute.Int("gen_ai.usage.input_tokens", got.Usage.Input),
		attribute.Int("gen_ai.usage.output_tokens", got.Usage.Output),
		attribute.String("gen_ai.output.messages", parts(answer)),
	)
	return answer, nil
}

func ask(ctx context.Context, question string) (message, error) {
	ctx, span := tracer.Start(ctx, "ask", trace.WithAttributes(
		attribute.String("session.id", "session-1"),
		attribute.String("user.id", "user-1"),
	))
	defer span.End()
	instructions := "Answer from the handbook:"
	for _, one := range search(ctx, question) {
		instructions += "\n" + one.Content
	}
	return chat(ctx, message{"system", instructions}, message{"user", question})
}

func main() {
	ctx := context.Background()
	exporter, err := otlptracehttp.New(ctx)
	if err != nil {
		log.Fatal(err)
	}
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter))
	otel.SetTracerProvider(provider)
	answer, err := ask(ctx, os.Args[1])
	if stopped := provider.Shutdown(ctx); stopped != nil {
		log.Print(stopped)
	}
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(answer.Content)
}

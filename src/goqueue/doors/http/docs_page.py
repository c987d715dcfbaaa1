"""The HTML pages: links at /, and the API explorer at /docs.

The explorer reads the OpenAPI document, shows every route, and can send requests. It is one file without external
resources, so it works without a network.
"""

from typing import Final

FIRST_PAGE: Final = b"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>GoQueue</title>
<style>
  :root { color-scheme: light dark; }
  body { font: 15px/1.7 system-ui, sans-serif; max-width: 40rem; margin: 3rem auto; padding: 0 1rem; }
</style>
<h1>GoQueue</h1>
<p>This is the HTTP API of a GoQueue broker.</p>
<ul>
  <li><a href="/docs">Routes</a>, with forms to try them</li>
  <li><a href="/openapi.json">OpenAPI document</a></li>
  <li><a href="/health">Health</a></li>
  <li><a href="/metrics">Metrics</a></li>
</ul>
"""
DOCS_PAGE: Final = rb"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>GoQueue</title>
<style>
  :root { color-scheme: light dark; --line: #8884; --soft: #8881; --accent: #2563eb; }
  body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
  h2 { margin: 2rem 0 .5rem; text-transform: capitalize; }
  details { border: 1px solid var(--line); border-radius: 6px; margin: .4rem 0; padding: 0 .8rem; }
  details[open] { padding-bottom: .8rem; }
  summary { cursor: pointer; padding: .5rem 0; }
  code, pre, textarea, input { font: 13px/1.5 ui-monospace, monospace; }
  .method { display: inline-block; min-width: 4rem; font-weight: 700; color: var(--accent); }
  .about { opacity: .7; margin-left: .6rem; }
  label { display: grid; grid-template-columns: 11rem 1fr; gap: .6rem; margin: .3rem 0; align-items: start; }
  label small { grid-column: 2; opacity: .7; }
  input, textarea { box-sizing: border-box; width: 100%; padding: .3rem; border: 1px solid var(--line); }
  pre { background: var(--soft); padding: .6rem; overflow: auto; max-height: 28rem; white-space: pre-wrap; }
  button { margin: .5rem .5rem 0 0; padding: .35rem 1rem; }
</style>
<h1>GoQueue</h1>
<p id="about">Loading the routes.</p>
<main></main>
<template id="operation">
  <details>
    <summary><span class="method"></span><code class="path"></code><span class="about"></span></summary>
    <p class="description"></p>
    <form>
      <div class="fields"></div>
      <button>Send</button><button type="button" class="stop" hidden>Stop</button>
    </form>
    <pre class="answer" hidden></pre>
    <details class="shapes"><summary>Shapes</summary><pre></pre></details>
  </details>
</template>
<script>
"use strict";
const base = location.pathname.replace(/\/docs\/?$/, "");
const template = document.getElementById("operation");

function resolve(spec, schema) {
  if (!schema || !schema.$ref) return schema || {};
  return schema.$ref.slice(2).split("/").reduce((node, key) => node[key], spec);
}

function sketch(spec, schema, depth = 0) {
  schema = resolve(spec, schema);
  const choices = schema.anyOf || schema.allOf;
  if (choices) return [...new Set(choices.map(one => sketch(spec, one, depth)))].join(" | ");
  if (schema.enum) return schema.enum.map(one => JSON.stringify(one)).join(" | ");
  const pad = "  ".repeat(depth);
  if (schema.properties) {
    const fields = Object.entries(schema.properties).map(([name, one]) => {
      const mark = (schema.required || []).includes(name) ? "" : "?";
      return `${pad}  ${name}${mark}: ${sketch(spec, one, depth + 1)}`;
    });
    return `{\n${fields.join("\n")}\n${pad}}`;
  }
  if (schema.type === "array") return `[${sketch(spec, schema.items, depth)}]`;
  if (schema.type === "object") return `{name: ${sketch(spec, schema.additionalProperties, depth)}}`;
  return schema.type || "any";
}

function field(name, about, value, rows) {
  const label = document.createElement("label");
  const input = document.createElement(rows ? "textarea" : "input");
  if (rows) input.rows = rows;
  input.name = name;
  input.value = value;
  const code = document.createElement("code");
  code.textContent = name;
  const small = document.createElement("small");
  small.textContent = about || "";
  label.append(code, input, small);
  return label;
}

const EXAMPLES = {
  create_topic: '{"name": "orders", "num_partitions": 3}',
  publish_messages: '{"key": "user-1", "value": "hello"}',
  publish_batch: '{"messages": [{"key": "user-1", "value": "hello"}, {"value": "later", "delay": "30s"}]}',
  change_config: '{"retention": "72h"}',
};

async function show(response, output, began) {
  const head = () => `${response.status} ${response.statusText}  ${(performance.now() - began).toFixed(1)} ms\n\n`;
  output.textContent = head();
  const type = response.headers.get("content-type") || "";
  if (type.startsWith("text/event-stream")) {
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let part = await reader.read(); !part.done; part = await reader.read()) output.append(part.value);
    return;
  }
  const text = await response.text();
  let shown = text;
  if (type.startsWith("application/json") && text) shown = JSON.stringify(JSON.parse(text), null, 2);
  output.textContent = head() + shown;
}

function render(spec, path, method, operation) {
  const node = template.content.cloneNode(true);
  const find = selector => node.querySelector(selector);
  find(".method").textContent = method.toUpperCase();
  find(".path").textContent = path;
  find(".about").textContent = operation.summary || "";
  find(".description").textContent = operation.description || "";
  const parameters = operation.parameters || [];
  for (const one of parameters) {
    const preset = one.schema && one.schema.default !== undefined ? String(one.schema.default) : "";
    find(".fields").append(field(one.name, one.description, one.in === "path" ? "" : preset));
  }
  const shape = operation.requestBody && operation.requestBody.content["application/json"].schema;
  if (shape) find(".fields").append(field("body", "JSON", EXAMPLES[operation.operationId] || "{}", 6));
  const shapes = shape ? [`request: ${sketch(spec, shape)}`] : [];
  for (const [status, answer] of Object.entries(operation.responses)) {
    for (const [type, content] of Object.entries(resolve(spec, answer).content || {}))
      shapes.push(`${status} ${type}: ${sketch(spec, content.schema)}`);
  }
  find(".shapes pre").textContent = shapes.join("\n\n");

  const form = find("form"), output = find(".answer"), stop = find(".stop");
  form.addEventListener("submit", async event => {
    event.preventDefault();
    const values = Object.fromEntries(new FormData(form));
    const query = new URLSearchParams(), headers = {};
    let target = path;
    for (const one of parameters) {
      const value = values[one.name];
      if (one.in === "path") target = target.replace(`{${one.name}}`, encodeURIComponent(value));
      else if (value && one.in === "header") headers[one.name] = value;
      else if (value) query.set(one.name, value);
    }
    const stopper = new AbortController();
    stop.onclick = () => stopper.abort();
    stop.hidden = output.hidden = false;
    output.textContent = "";
    const url = base + target + (String(query) ? `?${query}` : "");
    try {
      const options = { method: method.toUpperCase(), headers, body: shape && values.body, signal: stopper.signal };
      const began = performance.now();
      await show(await fetch(url, options), output, began);
    } catch (error) {
      output.append(String(error));
    }
    stop.hidden = true;
  });
  return node;
}

fetch(base + "/openapi.json").then(response => response.json()).then(spec => {
  document.getElementById("about").textContent = `${spec.info.description} Version ${spec.info.version}.`;
  const groups = {};
  for (const [path, operations] of Object.entries(spec.paths))
    for (const [method, operation] of Object.entries(operations))
      (groups[(operation.tags || ["other"])[0]] ||= []).push([path, method, operation]);
  for (const [name, operations] of Object.entries(groups)) {
    const title = document.createElement("h2");
    title.textContent = name;
    document.querySelector("main").append(title, ...operations.map(one => render(spec, ...one)));
  }
}).catch(error => { document.getElementById("about").textContent = String(error); });
</script>
"""

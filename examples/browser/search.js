// The page: finds the answers that are nearest to what is typed.

import { fetched, Rows } from "./rows.js";
import { TokenTable } from "./token_table.js";

const SHOWN = 5;
const [input, list, said] = ["query", "answers", "said"].map((id) => document.getElementById(id));
const encoders = {
  table: () => TokenTable.load("table"),
  graph: async () => (await import("./onnx_embedder.js")).OnnxEmbedder.load("graph"), // loaded by those who want it
};
const loaded = {};
const [answers, index] = await Promise.all([fetched("answers.json").then((file) => file.json()), Rows.load("index.safetensors")]);
const vectors = answers.map((_, place) => index.row(place));

let asked = 0; // a later question makes the answers to an earlier one void

async function search() {
  const mine = ++asked;
  const way = document.forms[0].elements.way.value;
  if (!loaded[way]) said.textContent = "Loading …";
  const encoder = await (loaded[way] ??= encoders[way]());
  const start = performance.now();
  const query = await encoder.encode(input.value);
  const took = performance.now() - start;
  if (mine !== asked) return;
  const found = input.value.trim() ? nearest(query) : [];
  list.replaceChildren(...found.map(item));
  const time = took < 1 ? "less than a millisecond" : `${Math.round(took)} milliseconds`;
  said.textContent = found.length ? `Embedded in ${time}, in this page.` : "";
}

// The answers, best first, with their cosines to the query.
function nearest(query) {
  const scores = vectors.map((vector) => vector.reduce((sum, value, place) => sum + value * query[place], 0));
  const order = [...scores.keys()].sort((one, other) => scores[other] - scores[one]);
  return order.slice(0, SHOWN).map((place) => ({ text: answers[place], score: scores[place] }));
}

function item({ text, score }) {
  const made = document.createElement("li");
  made.textContent = text;
  made.title = `cosine ${score.toFixed(3)}`;
  return made;
}

function searched() {
  search().catch((error) => {
    said.textContent = String(error);
  });
}

input.value = new URLSearchParams(location.search).get("q") ?? ""; // a link to a question
document.forms[0].addEventListener("input", searched);
document.forms[0].addEventListener("submit", (event) => event.preventDefault());
searched();

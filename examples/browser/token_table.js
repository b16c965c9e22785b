// Embeds queries by a saved token table, as `TokenTable` does in Python. The folder is what
// `truncate(fit_queries(model, documents), num_layers=0).save_pretrained(folder)` wrote.

import { Tokenizer } from "@huggingface/tokenizers";
import { fetched, Rows } from "./rows.js";

export class TokenTable {
  static async load(folder) {
    const names = ["modules", "config_sentence_transformers", "tokenizer"];
    const files = names.map(async (name) => (await fetched(`${folder}/${name}.json`)).json());
    const [modules, config, tokenizer, rows] = await Promise.all([...files, Rows.load(`${folder}/model.safetensors`)]);
    const kinds = modules.map((module) => module.type.split(".").pop()).join();
    if (!["StaticEmbedding", "StaticEmbedding,Normalize"].includes(kinds)) {
      throw new Error(`${folder} is no saved token table: it embeds by ${kinds}.`);
    }
    return new TokenTable(new Tokenizer(tokenizer, {}), rows, kinds.endsWith("Normalize"), config.truncate_dim);
  }

  constructor(tokenizer, rows, isNormalized, truncateDim) {
    Object.assign(this, { tokenizer, rows, isNormalized, dim: truncateDim ?? rows.dim });
  }

  // The mean of the rows of the text's tokens, of length 1 if the model's embeddings are; zeros for no token.
  encode(text) {
    const { ids } = this.tokenizer.encode(text, { add_special_tokens: false });
    const total = new Float32Array(this.rows.dim); // added in float32, one after the other, as in Python
    for (const id of ids) this.rows.row(id).forEach((value, place) => (total[place] += value));
    const mean = total.map((value) => value / Math.max(1, ids.length));
    const length = this.isNormalized ? Math.max(Math.hypot(...mean), 1e-12) : 1;
    return mean.map((value) => value / length).subarray(0, this.dim);
  }
}

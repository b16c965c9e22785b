// Embeds queries by an exported graph, as `OnnxEmbedder` does in Python. The folder is what `export_onnx(model, folder)` wrote.

import { Tokenizer } from "@huggingface/tokenizers";
import { env, InferenceSession, Tensor } from "onnxruntime-web/wasm";
import wasm from "onnxruntime-web/ort-wasm-simd-threaded.wasm";
import { fetched } from "./rows.js";

env.wasm.wasmPaths = { wasm };
env.wasm.numThreads = 1; // more need a server that isolates the page

export class OnnxEmbedder {
  static async load(folder) {
    const files = ["tokenizer", "onnx_embedder"].map(async (name) => (await fetched(`${folder}/${name}.json`)).json());
    const [tokenizer, about] = await Promise.all(files);
    return new OnnxEmbedder(tokenizer, about, await InferenceSession.create(`${folder}/model.onnx`));
  }

  constructor(tokenizer, about, session) {
    Object.assign(this, { tokenizer: new Tokenizer(tokenizer, {}), prompt: about.prompts.query, session });
    this.most = tokenizer.truncation.max_length;
  }

  async encode(text) {
    const ids = BigInt64Array.from(this.tokens(this.prompt + text), BigInt);
    const shape = [1, ids.length];
    const inputs = { input_ids: new Tensor("int64", ids, shape), attention_mask: new Tensor("int64", ids.map(() => 1n), shape) };
    return (await this.session.run(inputs)).sentence_embedding.data;
  }

  // The tokenizer of JavaScript does not cut texts: leave out what is too long before the last special token.
  tokens(text) {
    const { ids } = this.tokenizer.encode(text);
    return ids.length > this.most ? [...ids.slice(0, this.most - 1), ids.at(-1)] : ids;
  }
}

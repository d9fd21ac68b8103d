// A record written by hand.

import { get, post } from "./api.js";
import { failed, h, link, put } from "./dom.js";
import { whole } from "./format.js";

export function show(main, { names }) {
  const topic = h("input", { required: true, value: names[0] || "", placeholder: "flights", list: "topics", autocomplete: "off", "aria-label": "Topic", oninput: suggest });
  const topics = h("datalist", { id: "topics" });
  const key = h("input", { placeholder: "none", "aria-label": "Key", autocomplete: "off" });
  const value = h("textarea", { rows: 10, spellcheck: "false", placeholder: '{"carrier": "UA", "delay": 4}', "aria-label": "Value" });
  const encoding = h("select", { "aria-label": "The value is given as" }, ["text", "base64", "hex"].map((each) => h("option", { value: each }, each)));
  const isNull = h("input", { type: "checkbox", onchange: () => { value.disabled = isNull.checked; } });
  const headers = h("textarea", { rows: 3, spellcheck: "false", placeholder: "name: value, one on each line", "aria-label": "Headers" });
  const send = h("button", { type: "submit", class: "primary" }, "Produce");
  const said = h("div", { class: "stack", "aria-live": "polite" });
  const field = (name, ...parts) => h("label", { class: "field" }, h("span", {}, name), ...parts);
  const form = h("form", { class: "card form", onsubmit: write }, topics,
    field("Topic", topic), field("Key", key), field("Value", value),
    h("div", { class: "line" }, field("given as", encoding), h("label", { class: "check" }, isNull, "null value")),
    field("Headers", headers), h("div", { class: "line" }, send, h("small", { class: "faint" }, "Ctrl+Enter; waits until a store has it on disk")));
  main.append(h("div", { class: "head" }, h("h1", {}, "Produce")), form, said);
  form.addEventListener("keydown", (event) => { if (event.key === "Enter" && event.ctrlKey) form.requestSubmit(); });
  get("overview").then((found) => { if (!found.can_produce) { send.disabled = true; put(said, h("p", { class: "note" }, "This console does not write: it was started with --read-only, or with --stores in place of towers.")); } }).catch(() => {});

  async function suggest() {
    const found = await get("topics", { find: topic.value, most: 20, internal: 0 }).catch(() => ({ rows: [] }));
    put(topics, found.rows.map((row) => h("option", { value: row.name })));
  }

  async function write(event) {
    event.preventDefault();
    send.disabled = true;
    try {
      const lines = headers.value.split("\n").filter((each) => each.trim());
      const odd = lines.find((each) => !each.includes(":"));
      if (odd !== undefined) throw new Error(`header '${odd.trim()}' has no value: write name: value`);
      const pairs = lines.map((each) => [each.slice(0, each.indexOf(":")).trim(), each.slice(each.indexOf(":") + 1).trim()]);
      const found = await post("produce", { topic: topic.value, key: key.value === "" ? null : key.value, value: isNull.checked ? null : value.value, encoding: encoding.value, headers: pairs });
      said.prepend(h("p", { class: "note good" }, `Offset ${whole(found.offset)} of `, h("a", { href: link("records", found.topic, found.partition, found.offset) }, `${found.topic} / ${found.partition.slice(0, 8)}`), " is on disk."));
    } catch (error) {
      said.prepend(failed(error));
    } finally {
      send.disabled = false;
    }
  }

  suggest();
  topic.focus();
  return {};
}

// Asking the console's server.

async function answer(promise) {
  let found;
  try {
    found = await promise;
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("the console does not answer: is it still running?");
  }
  const body = await found.json().catch(() => ({ error: `the console answered with ${found.status}` }));
  if (found.status === 401) location.reload(); // it asks for the token
  // A page names no members of the API.
  if (!found.ok) throw new Error(body.error?.replace(/^member '\w+' = /, "") || `the console answered with ${found.status}`);
  return body;
}

/** What is at a path of the API. */
export function get(name, parameters = {}, signal = undefined) {
  return answer(fetch(url(name, parameters), { signal }));
}

/** Sends something. */
export function post(name, body) {
  const headers = { "Content-Type": "application/json" };
  return answer(fetch(`api/${name}`, { method: "POST", headers, body: JSON.stringify(body) }));
}

/** The address of something. */
export function url(name, parameters = {}) {
  const given = Object.entries(parameters).filter(([, value]) => value !== "" && value !== undefined && value !== null);
  const text = new URLSearchParams(given).toString();
  return `api/${name}${text ? `?${text}` : ""}`;
}

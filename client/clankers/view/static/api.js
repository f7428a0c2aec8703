// Requests to the view's server. A failed request is an error with a message; it is never an empty result.

const PAGE_KEY = "page-token"; // storage is separate for each port, unlike cookies

let writeToken = null;

class ViewError extends Error {
  constructor(status, message, code) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

async function read(response) {
  let body = null;
  try {
    body = await response.json();
  } catch {
    throw new ViewError(response.status, `the server answered ${response.status} without JSON`);
  }
  if (!response.ok) throw new ViewError(response.status, body.error?.message ?? "unknown error", body.error?.code);
  return body;
}

const pageToken = () => localStorage.getItem(PAGE_KEY) ?? "";

/** Return the address of a stream or a download, which cannot have headers of its own. */
export const direct = (path, params = {}) => `${path}?${new URLSearchParams({ ...params, page: pageToken() })}`;

async function send(path, options) {
  try {
    const headers = { ...options?.headers, "X-Clankers-Page-Token": pageToken() };
    return await read(await fetch(path, { ...options, headers }));
  } catch (error) {
    if (error instanceof ViewError || error.name === "AbortError") throw error;
    throw new ViewError(0, "The view's server does not answer. Start `clankers-ctl view` again.");
  }
}

const post = (path, body, headers, signal) =>
  send(path, {
    method: "POST",
    headers: { "Content-Type": "application/json", ...headers },
    body: JSON.stringify(body),
    signal,
  });

/** Exchange the token in the address for the cookie, remove it from the history, and fetch what the page needs. */
export async function start() {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (token) {
    history.replaceState(null, "", location.pathname + location.search);
    const opened = await post("/api/open", { token });
    localStorage.setItem(PAGE_KEY, opened.pageToken);
  }
  const started = await send("/api/start");
  writeToken = started.writeToken;
  return started;
}

/** Call a method that changes nothing. */
export async function rpc(method, params = {}, signal = undefined) {
  const given = Object.fromEntries(
    Object.entries(params).filter(([, value]) => value !== null && value !== undefined && value !== ""),
  );
  return (await post(`/api/rpc/${method}`, given, {}, signal)).result;
}

/** Call a method that changes something. The caller has asked first, or offers to undo it. */
export async function change(method, params) {
  return (await post(`/api/rpc/${method}`, params, { "X-Clankers-Write-Token": writeToken })).result;
}

/** Wait for a job of the daemon, and return its result. */
export async function finished(jobId) {
  for (;;) {
    const job = await rpc("job.status", { id: jobId });
    if (job.state === "done") return job.result;
    if (job.state !== "running") throw new ViewError(0, job.error ?? `the job was ${job.state}`);
    await new Promise((resolve) => setTimeout(resolve, 300));
  }
}

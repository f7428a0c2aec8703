// clankers for pi: an extension that tells the clankers daemon on this machine when something happened in a session, adds
// what the daemon recalls to your prompts, and gives the model the tools of the memory. pi has no MCP client, so the tools
// call the MCP server that other harnesses start. `clankers-ctl plugin` recognises the file by its first words.
//
// What happened is read by the daemon from the session file. pi waits for nothing here but the recall for a prompt and, for
// a moment, the last events at its end. Nothing throws. Without a daemon, the hook writes the events to the spool.
import { spawn } from "node:child_process"

const HOOK = ["clankers-hook"] // `clankers-ctl plugin install` writes full paths here
const MCP = ["clankers-mcp"]
const TOOLS = [] // and here the tools of the MCP server, as it lists them

const RECALL_TIMEOUT_MS = 5000
const EXIT_TIMEOUT_MS = 2000
const TOOL_TIMEOUT_MS = 60000

const running = new Set()

/** Starts a program in the folder of the session, which is the project to it. */
function start(command, words, cwd) {
  const env = { ...process.env, CLAUDE_PROJECT_DIR: cwd }
  const child = spawn(command[0], [...command.slice(1), ...words], { cwd, env, stdio: ["pipe", "pipe", "ignore"] })
  child.stdin.on("error", () => {})
  child.stdout.setEncoding("utf8")
  return child
}

/** Runs the hook with an event; resolves to what it printed, or to nothing if that takes too long. */
function runHook(event, ctx, ...options) {
  const context = {
    cwd: ctx.cwd,
    model: ctx.model && { provider: ctx.model.provider, id: ctx.model.id },
    sessionId: ctx.sessionManager.getSessionId(),
    sessionFile: ctx.sessionManager.getSessionFile(),
  }
  const finished = new Promise((resolve) => {
    let output = ""
    const child = start(HOOK, ["pi", ...options], ctx.cwd)
    const timer = setTimeout(() => resolve(""), RECALL_TIMEOUT_MS)
    timer.unref()
    const finish = (text) => {
      clearTimeout(timer)
      resolve(text)
    }
    child.on("error", () => finish(""))
    child.on("close", () => finish(output))
    child.stdout.on("data", (text) => (output += text))
    child.stdin.end(JSON.stringify({ event, ctx: context }))
  })
  running.add(finished)
  return finished.finally(() => running.delete(finished))
}

/** Waits for the hooks that run, for a moment: their events are sent or spooled then. */
async function finishHooks() {
  let timer
  const timeout = new Promise((resolve) => (timer = setTimeout(resolve, EXIT_TIMEOUT_MS)))
  await Promise.race([Promise.all(running), timeout])
  clearTimeout(timer)
}

/** Calls a tool of the MCP server; rejects with the text of its error. */
function callTool(name, args, cwd, signal) {
  return new Promise((resolve, reject) => {
    const child = start(MCP, [], cwd)
    const stop = (settle, value) => {
      clearTimeout(timer)
      child.kill()
      settle(value)
    }
    const timer = setTimeout(() => stop(reject, new Error("the memory does not answer")), TOOL_TIMEOUT_MS)
    signal?.addEventListener("abort", () => stop(reject, new Error("aborted")), { once: true })
    child.on("error", (error) => stop(reject, error))
    child.on("close", () => stop(reject, new Error("the memory is not available")))
    let buffered = ""
    child.stdout.on("data", (text) => {
      const lines = (buffered + text).split("\n")
      buffered = lines.pop() ?? ""
      for (const reply of lines.filter((line) => line.trim()).map((line) => JSON.parse(line))) {
        if (reply.id !== 2) continue
        const said = (reply.result?.content ?? []).map((part) => part.text ?? "").join("\n")
        if (reply.error || reply.result?.isError) stop(reject, new Error(reply.error?.message ?? said))
        else stop(resolve, said)
      }
    })
    const clientInfo = { name: "pi", version: "1" }
    const requests = [
      { id: 1, method: "initialize", params: { protocolVersion: "2025-06-18", capabilities: {}, clientInfo } },
      { method: "notifications/initialized" },
      { id: 2, method: "tools/call", params: { name, arguments: args } },
    ]
    for (const request of requests) child.stdin.write(`${JSON.stringify({ jsonrpc: "2.0", ...request })}\n`)
  })
}

/** Returns the text that the hook printed for a prompt. */
function recalledText(output) {
  try {
    return JSON.parse(output).text ?? ""
  } catch {
    return ""
  }
}

export default function (pi) {
  for (const type of ["session_start", "turn_end", "agent_end"]) {
    pi.on(type, async (event, ctx) => void runHook({ type, reason: event.reason }, ctx))
  }
  pi.on("session_compact", async (event, ctx) => void runHook({ type: "session_compact" }, ctx, "--recall"))
  pi.on("session_shutdown", async (event, ctx) => {
    void runHook({ type: "session_shutdown", reason: event.reason }, ctx)
    await finishHooks()
  })
  pi.on("before_agent_start", async (event, ctx) => {
    const output = await runHook({ type: "before_agent_start", prompt: event.prompt }, ctx, "--recall")
    const content = recalledText(output)
    return content ? { message: { customType: "clankers", content, display: false } } : undefined
  })
  for (const tool of TOOLS) {
    pi.registerTool({
      name: `clankers_${tool.name}`,
      label: `clankers ${tool.name}`,
      description: tool.description,
      parameters: tool.inputSchema,
      async execute(_id, args, signal, _onUpdate, ctx) {
        const text = await callTool(tool.name, args, ctx.cwd, signal)
        return { content: [{ type: "text", text }], details: undefined }
      },
    })
  }
}

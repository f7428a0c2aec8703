// clankers for OpenCode: a plugin that sends the events of your sessions to the clankers daemon on this machine, and
// adds what the daemon recalls to your prompts. One file without dependencies, for OpenCode's runtime (Bun; Node works
// too). `clankers-ctl plugin` recognises the file by its first words.
//
// Each event is sent as one `hook.event` request {harness: "opencode", at, event}, in which the event has the project's
// `directory`:
//   - Bus events unchanged, {id, type, properties}: session.created, .updated, .deleted, .error, .compacted and .idle,
//     and message.part.updated of tool parts that are completed or failed (for a tool that throws, OpenCode does not
//     call tool.execute.after, so the part is the only source). Tools that are still running when OpenCode exits are
//     sent in their current state.
//   - Messages assembled from their parts, {type: "clankers.message", properties: {sessionID, info, parts}}: a prompt
//     as soon as it exists, an answer when it is complete, and every changed message when the session becomes idle or
//     OpenCode exits. A message that changes later is sent again; storing it is idempotent. No timer is involved.
//
// OpenCode waits only for `dispose`, which waits until the last events are acknowledged or spooled. Nothing here
// throws. Events that the daemon does not acknowledge are written to the spool, in the format of clankers.spool. The
// daemon stores spooled events before later ones.
import { spawn } from "node:child_process"
import fs from "node:fs"
import net from "node:net"
import os from "node:os"
import path from "node:path"

const HARNESS = "opencode"
const HOOK = ["clankers-hook"] // `clankers-ctl plugin install` writes full paths here
const MCP = ["clankers-mcp"]
const COMMANDS = {} // here the commands, by their names
const ENVIRONMENT = {} // and here the variables that locate the daemon's files, if they are not in the default place

const CONNECT_TIMEOUT_MS = 200
const REPLY_TIMEOUT_MS = 5000
const DISPOSE_TIMEOUT_MS = 3000
const RECONNECT_DELAY_MS = 1000 // after a failed connection, events are spooled for this long before the next attempt
const RESTART_DELAY_MS = 30000
const MAX_BATCH_EVENTS = 100
const MAX_SEND_BYTES = 31 * 1024 * 1024
const MAX_SPOOL_BYTES = 256 * 1024 * 1024
const MAX_LOG_BYTES = 1024 * 1024
const LOSS_RECORD_BYTES = 512
const MAX_CACHED_ITEMS = 500 // messages in memory, in case their parts change; likewise tool states and recalled texts

const FORWARDED_EVENTS = new Set([
  "session.created",
  "session.updated",
  "session.deleted",
  "session.error",
  "session.compacted",
  "session.idle",
])

// --- Paths, as in clankers.hook

function environmentVariable(name) {
  return process.env[name] || ENVIRONMENT[name]
}

function dataFolder() {
  const configured = environmentVariable("CLANKERS_DATA_PATH") || (environmentVariable("XDG_DATA_HOME") || "").trim()
  const home = process.env.HOME || os.homedir()
  const fallback = process.platform === "darwin" ? `${home}/Library/Application Support` : `${home}/.local/share`
  return path.join(expandHome(configured || fallback), "clankers")
}

function socketPath() {
  const configured = environmentVariable("CLANKERS_SOCKET_PATH")
  return configured ? expandHome(configured) : path.join(dataFolder(), "dxta-clankers.sock")
}

function expandHome(name) {
  return name.startsWith("~/") ? path.join(process.env.HOME || os.homedir(), name.slice(2)) : name
}

/** Appends a line to hook.log: printing would disturb OpenCode's terminal interface. */
function writeLog(text) {
  try {
    const folder = environmentVariable("CLANKERS_LOG_PATH") || path.join(dataFolder(), "logs")
    fs.mkdirSync(folder, { recursive: true, mode: 0o700 })
    const file = path.join(folder, "hook.log")
    const tooLarge = fs.existsSync(file) && fs.statSync(file).size > MAX_LOG_BYTES
    const { O_WRONLY, O_CREAT, O_APPEND, O_NONBLOCK, O_NOFOLLOW, O_TRUNC } = fs.constants
    const flag = O_WRONLY | O_CREAT | O_APPEND | O_NONBLOCK | O_NOFOLLOW | (tooLarge ? O_TRUNC : 0)
    fs.writeFileSync(file, `${new Date().toISOString()} ${HARNESS}: ${text}\n`, { flag, mode: 0o600 })
  } catch {}
}

/** Counts and logs an event that could neither be sent nor spooled, as clankers.lost_events does. */
function reportLoss(error) {
  try {
    const { O_RDWR, O_CREAT, O_NONBLOCK, O_NOFOLLOW } = fs.constants
    const flags = O_RDWR | O_CREAT | O_NONBLOCK | O_NOFOLLOW
    const file = fs.openSync(path.join(dataFolder(), "lost-events"), flags, 0o600)
    try {
      const record = Buffer.alloc(LOSS_RECORD_BYTES)
      fs.readSync(file, record, 0, LOSS_RECORD_BYTES, 0)
      const count = Number(/^\d{1,15} /.exec(record.toString("latin1"))?.[0] ?? 0) + 1
      const line = Buffer.from(`${count} ${Date.now()} ${`${error}`.replace(/\s+/g, " ")}`)
      record.fill(" ")
      line.copy(record, 0, 0, LOSS_RECORD_BYTES - 1)
      record.write("\n", LOSS_RECORD_BYTES - 1)
      fs.writeSync(file, record, 0, LOSS_RECORD_BYTES, 0)
    } finally {
      fs.closeSync(file)
    }
  } catch {}
  writeLog(`event lost: ${error}`)
}

/** Wraps a function so that its exceptions are logged and not passed on to OpenCode. */
function withoutThrowing(action) {
  return (...args) => {
    try {
      return action(...args)
    } catch (error) {
      writeLog(`${error?.stack ?? error}`)
    }
  }
}

// --- The spool

let lastTimestamp = 0n

/** Returns the path for the next event, without suffix. The order of the names is the order of the events. */
function nextSpoolPath(folder, length) {
  const now = BigInt(Date.now()) * 1000000n
  lastTimestamp = now > lastTimestamp ? now : lastTimestamp + 1n
  return path.join(folder, `${String(lastTimestamp).padStart(20, "0")}-${process.pid}-${length}`)
}

/** Throws if an event of this length does not fit into the spool; file names contain the sizes. */
function checkSpoolSize(names, length) {
  const sizes = names.map((name) => Number(/-(\d+)\.\w+$/.exec(name)?.[1] ?? 0))
  if (sizes.reduce((sum, size) => sum + size, length) > MAX_SPOOL_BYTES) throw new Error("the spool is full")
}

/** Returns whether a folder, or one above it, contains the file that opts out of capture, also where links lead. */
function isOptedOut(folder) {
  if (!folder || !path.isAbsolute(folder)) return false
  const places = [folder]
  try {
    places.push(fs.realpathSync(folder))
  } catch {} // it is gone
  for (const place of places) {
    for (let each = place; ; each = path.dirname(each)) {
      if (fs.lstatSync(path.join(each, ".clankers-ignore"), { throwIfNoEntry: false })) return true
      const repository = repositoryOfWorktree(each)
      if (repository && !places.includes(repository)) places.push(repository)
      if (path.dirname(each) === each) break
    }
  }
  return false
}

/** Returns the folder of the repository whose worktree a folder is; null if it is none. */
function repositoryOfWorktree(folder) {
  const link = path.join(folder, ".git")
  if (!fs.lstatSync(link, { throwIfNoEntry: false })?.isFile()) return null
  const found = /^gitdir:\s*(.*)\/\.git\/worktrees\//.exec(fs.readFileSync(link, "utf8"))
  return found && path.resolve(folder, found[1])
}

/** Replaces text in <private> tags in every string of a value, as the daemon's redaction does. */
function withoutPrivate(value) {
  if (typeof value === "string") return /<private[>\s]/i.test(value) ? redactPrivate(value) : value
  if (Array.isArray(value)) return value.map(withoutPrivate)
  if (value === null || typeof value !== "object") return value
  return Object.fromEntries(Object.entries(value).map(([key, each]) => [key, withoutPrivate(each)]))
}

/** Replaces private blocks of a text. Tags may be nested; one that is not closed reaches to the end. */
function redactPrivate(text) {
  let result = "", copied = 0, depth = 0
  for (const tag of text.matchAll(/<(\/?)private(?:\s{1,20}(?:[a-z_-]{1,40}=[^<>]{0,200}(?<!\/))?)?>/gi)) {
    if (!tag[1] && depth++ === 0) result += `${text.slice(copied, tag.index)}[redacted:private]`
    else if (tag[1] && depth > 0 && --depth === 0) copied = tag.index + tag[0].length
  }
  return depth > 0 ? result : result + text.slice(copied)
}

/** Returns what may lie in the spool of an event, as bytes; null if its project has opted out. */
function spoolable(params) {
  const { event } = JSON.parse(params)
  if (isOptedOut(event?.directory)) return null
  return Buffer.from(/<private(?:[>\s]|\\[nrt])/i.test(params) ? JSON.stringify(withoutPrivate(JSON.parse(params))) : params)
}

/** Writes one event to the spool, completely or not at all. */
async function spoolEvent(params) {
  const body = spoolable(params)
  if (body === null) return
  const folder = path.join(dataFolder(), "spool")
  const name = nextSpoolPath(folder, body.length)
  await fs.promises.mkdir(folder, { recursive: true, mode: 0o700 })
  checkSpoolSize(await fs.promises.readdir(folder), body.length)
  const file = await fs.promises.open(`${name}.unfinished`, "wx", 0o600)
  try {
    await file.writeFile(body)
    await file.sync()
  } catch (error) {
    await fs.promises.unlink(`${name}.unfinished`)
    throw error
  } finally {
    await file.close()
  }
  await fs.promises.rename(`${name}.unfinished`, `${name}.json`)
  const parent = await fs.promises.open(folder, "r")
  await parent.sync().finally(() => parent.close())
}

/** Writes one event to the spool synchronously, for the exit handler. */
function spoolEventSync(params) {
  const body = spoolable(params)
  if (body === null) return
  const folder = path.join(dataFolder(), "spool")
  const name = nextSpoolPath(folder, body.length)
  fs.mkdirSync(folder, { recursive: true, mode: 0o700 })
  checkSpoolSize(fs.readdirSync(folder), body.length)
  const file = fs.openSync(`${name}.unfinished`, "wx", 0o600)
  fs.writeFileSync(file, body)
  fs.fsyncSync(file)
  fs.closeSync(file)
  fs.renameSync(`${name}.unfinished`, `${name}.json`)
}

// --- The connection

/** The daemon, over one connection that is opened on first use and reopened when lost. */
class Daemon {
  #connection = null
  #retryAt = 0

  /** Sends a request and resolves to its result; rejects if there is none. */
  async request(method, params) {
    if (!this.#connection && Date.now() < this.#retryAt) throw new Error("the daemon is unavailable")
    if (!this.#connection) this.#refuseForeignSocket(socketPath())
    const connection = (this.#connection ??= new Connection())
    try {
      return await connection.request(method, params)
    } finally {
      if (connection.lost && this.#connection === connection) this.#lose(connection.lost)
    }
  }

  close() {
    this.#connection?.end(new Error("closed"))
    this.#connection = null
  }

  /** Throws if the socket belongs to another user: a hostile environment may point the path anywhere. */
  #refuseForeignSocket(file) {
    const owner = fs.statSync(file, { throwIfNoEntry: false })?.uid
    if (owner === undefined || !process.getuid || owner === process.getuid()) return
    this.#retryAt = Date.now() + RECONNECT_DELAY_MS
    writeLog(`not sent: ${file} belongs to another user (uid ${owner}); check CLANKERS_SOCKET_PATH`)
    throw new Error("the socket belongs to another user")
  }

  #lose(problem) {
    this.#connection = null
    this.#retryAt = Date.now() + RECONNECT_DELAY_MS
    if (problem.code === "ENOENT" || problem.code === "ECONNREFUSED") withoutThrowing(startDaemon)()
  }
}

/** One connection; once it has ended, `lost` is the reason. */
class Connection {
  lost = null
  #socket
  #received = Buffer.alloc(0)
  #pending = new Map()
  #lastId = 0

  constructor() {
    this.#socket = net.createConnection({ path: socketPath() })
    const timer = setTimeout(() => this.end(new Error("the daemon does not accept connections")), CONNECT_TIMEOUT_MS)
    this.#socket.once("connect", () => clearTimeout(timer))
    this.#socket.on("data", (data) => this.#receive(data))
    this.#socket.on("error", (error) => this.end(error))
    this.#socket.on("close", () => {
      clearTimeout(timer)
      this.end(new Error("the daemon closed the connection"))
    })
    this.#socket.unref?.() // does not prevent OpenCode from exiting
  }

  request(method, params) {
    if (this.lost) return Promise.reject(this.lost)
    const id = ++this.#lastId
    const body = Buffer.from(`{"jsonrpc":"2.0","id":${id},"method":"${method}","params":${params}}`)
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => this.end(new Error("the daemon does not reply")), REPLY_TIMEOUT_MS)
      timer.unref?.()
      this.#pending.set(id, { resolve, reject, timer })
      this.#socket.write(Buffer.concat([Buffer.from(`Content-Length: ${body.length}\r\n\r\n`), body]))
    })
  }

  end(problem) {
    if (this.lost) return
    this.lost = problem
    this.#socket.destroy()
    for (const { reject, timer } of this.#pending.values()) {
      clearTimeout(timer)
      reject(problem)
    }
    this.#pending.clear()
  }

  #receive(data) {
    try {
      this.#received = Buffer.concat([this.#received, data])
      for (let reply; (reply = this.#nextReply()); ) this.#settle(reply)
    } catch (error) {
      this.end(error)
    }
  }

  #nextReply() {
    const header = this.#received.indexOf("\r\n\r\n")
    if (header < 0) return null
    const length = Number(/(\d+)\s*$/.exec(this.#received.subarray(0, header).toString())?.[1])
    const end = header + 4 + length
    if (this.#received.length < end) return null
    const reply = JSON.parse(this.#received.subarray(header + 4, end).toString())
    this.#received = this.#received.subarray(end)
    return reply
  }

  #settle(reply) {
    const pending = this.#pending.get(reply.id)
    if (!pending) return
    this.#pending.delete(reply.id)
    clearTimeout(pending.timer)
    if ("result" in reply) pending.resolve(reply.result)
    else pending.reject(new Error(reply.error?.message ?? "refused"))
  }
}

let startedAt = 0

/** Runs the hook to start the daemon: the hook reads the settings and ensures that only one is started. */
function startDaemon() {
  if (Date.now() - startedAt < RESTART_DELAY_MS) return
  startedAt = Date.now()
  const child = spawn(HOOK[0], [...HOOK.slice(1), HARNESS, "--start"], { detached: true, stdio: "ignore" })
  child.on("error", (error) => writeLog(`cannot run ${HOOK[0]}: ${error.message}`))
  child.unref()
}

// --- The queue

/** Queue of events for the daemon, in order. Each event is either acknowledged or spooled. */
class Outbox {
  #daemon
  #directory
  #queue = []
  #sending = null

  constructor(daemon, directory) {
    this.#daemon = daemon
    this.#directory = directory
  }

  /** Queues an event. It replaces a queued event with the same key, which it makes obsolete. */
  put(event, key = null) {
    const located = this.#directory ? { ...event, directory: this.#directory } : event
    const item = { key, params: JSON.stringify({ harness: HARNESS, at: Date.now(), event: located }) }
    const obsolete = key === null ? -1 : this.#queue.findIndex((other) => other.key === key)
    if (obsolete >= 0) this.#queue[obsolete] = item
    else this.#queue.push(item)
    this.#sending ??= Promise.resolve().then(() => this.#sendQueue())
  }

  /** Waits until the queue is empty or the time is up, and spools what is left. */
  async flush(milliseconds) {
    let timer
    const timeout = new Promise((resolve) => (timer = setTimeout(resolve, milliseconds)))
    await Promise.race([this.#sending, timeout])
    clearTimeout(timer)
    this.spoolAll()
  }

  /** Spools everything that has not been acknowledged, synchronously. */
  spoolAll() {
    for (const item of this.#queue.splice(0)) {
      try {
        spoolEventSync(item.params)
      } catch (error) {
        reportLoss(error)
      }
    }
  }

  async #sendQueue() {
    while (this.#queue.length) {
      const batch = this.#queue.slice(0, MAX_BATCH_EVENTS)
      for (const item of batch) item.key = null // being sent: can no longer be replaced
      const acknowledged = await Promise.all(batch.map((item) => this.#send(item)))
      for (const [index, item] of batch.entries()) {
        if (!this.#queue.includes(item)) continue // spooled by spoolAll() in the meantime
        if (!acknowledged[index]) await spoolEvent(item.params).catch(reportLoss)
        this.#queue = this.#queue.filter((other) => other !== item)
      }
    }
    this.#sending = null
  }

  async #send(item) {
    if (Buffer.byteLength(item.params) > MAX_SEND_BYTES) return false
    try {
      await this.#daemon.request("hook.event", item.params)
      return true
    } catch {
      return false
    }
  }
}

const closers = new Set()

process.once("exit", () => {
  for (const close of closers) withoutThrowing(close)() // older versions of OpenCode exit without calling `dispose`
})

// --- Messages and tools of sessions

/** Returns the session id from the first object that has one, in any of its spellings. */
function findSessionId(...objects) {
  for (const object of objects) {
    const id = object?.sessionID ?? object?.sessionId ?? object?.session_id
    if (typeof id === "string" && id) return id
  }
}

/** Returns a part without the content of attached files; only their names are stored. */
function withoutFileContent(part) {
  const { url, state, ...rest } = part
  if (typeof url === "string" && !url.startsWith("data:")) rest.url = url
  if (state && typeof state === "object") {
    const { attachments: _, ...stateWithoutFiles } = state
    rest.state = stateWithoutFiles
  }
  return rest
}

/** Assembles messages from their parts, which may arrive in any order. */
class Messages {
  #outbox
  #messages = new Map()

  constructor(outbox) {
    this.#outbox = outbox
  }

  info(info, session) {
    if (!info?.id) return
    const message = this.#message(info.id, session)
    const { summary, ...rest } = info
    message.info = { ...message.info, ...rest }
    if (summary === true) message.info.summary = true // in a user message the summary is a diff of the turn
    if (this.#isDue(message)) this.#send(message)
  }

  part(part, session) {
    if (!part?.id || !part.messageID || part.type === "tool" || /^step-/.test(part.type)) return
    const message = this.#message(part.messageID, session)
    message.parts.set(part.id, withoutFileContent(part))
    if (this.#isDue(message)) this.#send(message)
  }

  delta({ messageID, partID, field, delta }) {
    const part = this.#messages.get(messageID)?.parts.get(partID)
    if (!part || field !== "text" || typeof delta !== "string") return
    part.text = (part.text ?? "") + delta
  }

  removePart({ messageID, partID }) {
    this.#messages.get(messageID)?.parts.delete(partID)
  }

  /** Sends every message that has changed since it was last sent, complete or not. */
  flush() {
    for (const message of this.#messages.values()) if (message.info.role) this.#send(message)
  }

  #message(id, session) {
    let message = this.#messages.get(id)
    if (!message) {
      message = { info: { id }, parts: new Map(), session, sent: null }
      this.#messages.set(id, message)
      if (this.#messages.size > MAX_CACHED_ITEMS) this.#evictOldest()
    }
    message.session ??= session
    return message
  }

  #evictOldest() {
    const [id, oldest] = this.#messages.entries().next().value
    if (oldest.info.role) this.#send(oldest)
    this.#messages.delete(id)
  }

  #isDue({ info, parts }) {
    return info.role === "user" ? parts.size > 0 : Boolean(info.role && info.time?.completed)
  }

  #send(message) {
    const properties = { sessionID: message.session, info: message.info, parts: [...message.parts.values()] }
    const text = JSON.stringify(properties)
    if (text === message.sent) return
    message.sent = text
    this.#outbox.put({ type: "clankers.message", properties }, `message ${message.info.id}`)
  }
}

/** Tool calls: sent when they have ended, or in their current state when OpenCode exits. */
class Tools {
  #outbox
  #running = new Map()
  #ended = new Set()

  constructor(outbox) {
    this.#outbox = outbox
  }

  part(event, part) {
    const status = part.state?.status
    const stripped = { ...event, properties: { ...event.properties, part: withoutFileContent(part) } }
    const key = `${part.id} ${status}`
    if (status !== "completed" && status !== "error") {
      this.#running.set(part.id, stripped)
    } else if (!this.#ended.has(key)) {
      this.#running.delete(part.id)
      this.#ended.add(key)
      if (this.#ended.size > MAX_CACHED_ITEMS) this.#ended.delete(this.#ended.values().next().value)
      this.#outbox.put(stripped, `tool ${part.id}`)
    }
  }

  flush() {
    for (const [id, event] of this.#running) this.#outbox.put(event, `tool ${id}`)
    this.#running.clear()
  }
}

export const ClankersPlugin = async ({ directory, worktree } = {}) => {
  const daemon = new Daemon()
  const outbox = new Outbox(daemon, directory ?? worktree)
  const messages = new Messages(outbox)
  const tools = new Tools(outbox)
  const recalled = new Map() // recalled text parts by the id of the user message they belong to
  const sessionsWithRecall = new Set() // sessions whose context still contains what was recalled earlier

  function onEvent(event) {
    const properties = event.properties ?? {}
    const session = findSessionId(properties, properties.info, properties.part)
    if (event.type === "message.updated") messages.info(properties.info, session)
    else if (event.type === "message.part.updated") {
      if (properties.part?.type === "tool") tools.part(event, properties.part)
      else messages.part(properties.part, session)
    } else if (event.type === "message.part.delta") messages.delta(properties)
    else if (event.type === "message.part.removed") messages.removePart(properties)
    else if (FORWARDED_EVENTS.has(event.type)) onSession(event, session)
  }

  function onSession(event, session) {
    if (event.type === "session.compacted") sessionsWithRecall.delete(session)
    if (event.type !== "session.created" && event.type !== "session.updated") messages.flush()
    outbox.put(event, event.type === "session.updated" ? `session ${event.properties?.info?.id ?? session}` : null)
  }

  function onPrompt(input, output) {
    const { message, parts = [] } = output ?? {}
    const session = findSessionId(input, message)
    for (const part of parts) messages.part(part, session)
    messages.info(message, session)
    const typedParts = parts.filter((part) => part.type === "text" && !part.synthetic && !part.ignored)
    const prompt = typedParts.map((part) => part.text).join("\n")
    if (!session || !message?.id || !prompt.trim()) return
    const compacted = !sessionsWithRecall.has(session) // or resumed, or new: the context contains no recalled text
    sessionsWithRecall.add(session)
    recall({
      hook_event_name: "chat.message",
      sessionID: session,
      messageID: message.id,
      cwd: directory ?? worktree,
      prompt,
      compacted,
    })
  }

  function recall(event) {
    daemon
      .request("recall.hook", JSON.stringify({ harness: HARNESS, event }))
      .then((result) => {
        if (typeof result?.output?.text === "string" && result.output.text) addRecalled(event, result.output.text)
      })
      .catch(() => {})
  }

  function addRecalled({ messageID, sessionID }, text) {
    recalled.set(messageID, { id: `prt_clankers_${messageID}`, messageID, sessionID, type: "text", synthetic: true, text })
    if (recalled.size > MAX_CACHED_ITEMS) recalled.delete(recalled.keys().next().value)
  }

  /** Adds the recalled text to its prompt in each request to the model; OpenCode does not store it. */
  function onRequest(output) {
    for (const message of output?.messages ?? []) {
      const part = recalled.get(message.info?.id)
      if (part && !message.parts.some((other) => other.id === part.id)) message.parts.push(part)
    }
  }

  function onConfig(config) {
    config.mcp ??= {}
    config.mcp.clankers ??= { type: "local", command: MCP, environment: ENVIRONMENT, enabled: true }
    config.command ??= {}
    for (const [name, command] of Object.entries(COMMANDS)) config.command[name] ??= command
  }

  async function onDispose() {
    messages.flush()
    tools.flush()
    await outbox.flush(DISPOSE_TIMEOUT_MS)
    daemon.close()
    closers.delete(onExit)
  }

  /** Spools everything that has not been acknowledged, also of messages and tools that are not complete. */
  function onExit() {
    messages.flush()
    tools.flush()
    outbox.spoolAll()
  }

  closers.add(onExit)
  const handleEvent = withoutThrowing(onEvent)
  const handlePrompt = withoutThrowing(onPrompt)
  const handleRequest = withoutThrowing(onRequest)
  const handleConfig = withoutThrowing(onConfig)
  return {
    event: async ({ event }) => handleEvent(event),
    "chat.message": async (input, output) => handlePrompt(input, output),
    "experimental.chat.messages.transform": async (_input, output) => handleRequest(output),
    config: async (config) => handleConfig(config),
    dispose: async () => onDispose().catch((error) => writeLog(`${error?.stack ?? error}`)),
  }
}

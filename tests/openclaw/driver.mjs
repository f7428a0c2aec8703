// Plays OpenClaw for its plugin: loads it, calls the hooks that stand on stdin line by line, prints what they return.
import { createInterface } from "node:readline"

const { default: plugin } = await import(process.argv[2])
const hooks = new Map()
const tools = new Map()
plugin.register({
  on: (name, handler) => hooks.set(name, handler),
  registerTool: (make, { names }) => names.forEach((name) => tools.set(name, make)),
  registerMemoryCapability: () => {},
})
const alive = setInterval(() => {}, 1000) // as a gateway is; the plugin itself keeps no process running

for await (const line of createInterface({ input: process.stdin })) {
  const step = JSON.parse(line)
  if (step.exit) process.exit(0)
  if (step.tool) console.log(JSON.stringify(await tools.get(step.tool)(step.ctx).execute("call", step.params)))
  else {
    const answer = await hooks.get(step.hook)?.(step.event, step.ctx)
    if (step.print) console.log(JSON.stringify(answer ?? null))
  }
}
await hooks.get("gateway_stop")({}, {})
clearInterval(alive)

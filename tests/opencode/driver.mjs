// Plays OpenCode for its plugin: loads it, tells it what stands on stdin line by line, prints what hooks put out.
import { createInterface } from "node:readline"

const { ClankersPlugin } = await import(process.argv[2])
const directory = process.argv[3] ?? "/home/user/proj"
const hooks = await ClankersPlugin({ directory, worktree: directory })

for await (const line of createInterface({ input: process.stdin })) {
  const step = JSON.parse(line)
  if ("event" in step) hooks.event({ event: step.event }) // OpenCode does not wait for these
  else if (step.hook && hooks[step.hook]) {
    await hooks[step.hook](step.input, step.output)
    if (step.print) console.log(JSON.stringify(step.output ?? step.input))
  } else if (step.exit) process.exit(0)
}

"""Texts for agents: a skill and commands. They are kept in the form of Claude Code and rendered for other harnesses."""

import json
from dataclasses import dataclass
from importlib.resources import files as package_files

SKILL = "clankers-memory"
SKILL_FILE = f"skills/{SKILL}/SKILL.md"
ARGUMENTS = "$ARGUMENTS"


@dataclass(frozen=True)
class AgentCommand:
    """A command that a user enters: its prompt for the agent has `$ARGUMENTS` in the place of the user's words."""

    name: str
    description: str
    argument_hint: str
    prompt: str

    @property
    def front_matter(self) -> str:
        """Return the facts that most harnesses read from a Markdown file."""
        hint = f"argument-hint: {json.dumps(self.argument_hint)}\n" if self.argument_hint else ""
        return f"---\ndescription: {self.description}\n{hint}---\n"


def skill_file() -> dict[str, bytes]:
    """Return the skill, at its place in a plugin."""
    return {SKILL_FILE: (package_files("clankers.ctl") / "plugins" / "claude-code" / SKILL_FILE).read_bytes()}


def agent_commands() -> list[AgentCommand]:
    """Return every command, in the order of their names."""
    folder = package_files("clankers.ctl") / "plugins" / "claude-code" / "commands"
    commands = []
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        _, header, prompt = entry.read_text("utf-8").split("---\n", 2)
        facts = dict(line.split(": ", 1) for line in header.splitlines())
        hint = facts.get("argument-hint", "")
        commands.append(AgentCommand(entry.name.removesuffix(".md"), facts["description"], hint, prompt.strip()))
    return commands


def markdown_commands(folder: str, prefix: str = "") -> dict[str, bytes]:
    """Return the commands as Markdown files, without the names of tools, which other harnesses do not share."""
    return {
        f"{folder}/{prefix}{command.name}.md": f"{command.front_matter}\n{command.prompt}\n".encode()
        for command in agent_commands()
    }


def toml_commands(folder: str) -> dict[str, bytes]:
    """Return the commands as TOML files, for Gemini CLI and its forks."""
    contents = {}
    for command in agent_commands():
        prompt = command.prompt.replace(ARGUMENTS, "{{args}}")
        text = f'description = {json.dumps(command.description)}\nprompt = """\n{prompt}\n"""\n'
        contents[f"{folder}/{command.name}.toml"] = text.encode()
    return contents


def command_skills() -> dict[str, bytes]:
    """Return the commands as skills that the user names, for harnesses whose plugins have no commands."""
    contents = {}
    for command in agent_commands():
        name = f"clankers-{command.name}"
        description = f"{command.description}. Use it only if the user names {name} or asks for this."
        prompt = command.prompt.replace(ARGUMENTS, "(what the user wrote with the name of this skill)")
        contents[f"skills/{name}/SKILL.md"] = (
            f"---\nname: {name}\ndescription: {description}\n---\n\n{prompt}\n".encode()
        )
    return contents


def command_templates() -> dict[str, dict[str, str]]:
    """Return the commands as templates by their names, for the configuration of OpenCode."""
    return {
        command.name: {"description": command.description, "template": command.prompt} for command in agent_commands()
    }

"""`clankers-ctl completion`."""

import click
from click.shell_completion import get_completion_class

from clankers.ctl.command import Ctl, common_options


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@common_options
def completion(ctl: Ctl, shell: str) -> None:
    """Print a script for shell completion.

    For zsh, add `fpath+=~/.zfunc` before `compinit` in ~/.zshrc. The folder of the script has to exist:

    \b
      mkdir -p ~/.local/share/bash-completion/completions ~/.zfunc ~/.config/fish/completions

    \b
    Examples:
      clankers-ctl completion bash > ~/.local/share/bash-completion/completions/clankers-ctl
      clankers-ctl completion zsh > ~/.zfunc/_clankers-ctl
      clankers-ctl completion fish > ~/.config/fish/completions/clankers-ctl.fish
    """
    completer = get_completion_class(shell)
    assert completer  # for the type checker: click supports all three shells
    root = click.get_current_context().find_root().command
    script = completer(root, {}, "clankers-ctl", "_CLANKERS_CTL_COMPLETE").source()
    ctl.report({"shell": shell, "script": script}, script)

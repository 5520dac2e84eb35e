"""``clutch completion``: what a shell needs to complete commands, options and names."""

from __future__ import annotations

from typing import Annotated

import typer

from clutch.wire.errors import BadRequest

SHELLS = ("bash", "zsh", "fish", "powershell", "pwsh")
app = typer.Typer(rich_markup_mode=None)


@app.command("completion")
def completion(shell: Annotated[str, typer.Argument(help="bash, zsh, fish or powershell.")] = "bash") -> None:
    """Print the completion script of a shell. Use it with: eval "$(clutch completion bash)"."""
    from typer._completion_shared import get_completion_script

    if shell not in SHELLS:
        raise BadRequest(
            f"there is no completion for {shell!r}", object="shell", next_step=f"One of {', '.join(SHELLS)}."
        )
    typer.echo(get_completion_script(prog_name="clutch", complete_var="_CLUTCH_COMPLETE", shell=shell))

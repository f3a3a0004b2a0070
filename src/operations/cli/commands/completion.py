"""`ops completion`: print a shell's completion script."""

from __future__ import annotations

from operations.cli.arguments import Argument, Command, ParsedArguments
from operations.cli.commands import SUMMARIES
from operations.cli.failures import OK
from operations.cli.output import write_either

_BASH = """\
_ops_complete() {
    local line="${COMP_LINE:0:COMP_POINT}" found
    COMPREPLY=()
    while IFS= read -r found; do
        COMPREPLY+=("$found")
    done < <("${COMP_WORDS[0]}" __complete bash "$line" 2>/dev/null)
    if [[ ${COMPREPLY[0]-} == *[=./] ]]; then
        compopt -o nospace 2>/dev/null
    fi
    if [[ ${COMPREPLY[0]-} == __files__ ]]; then
        COMPREPLY=()
        compopt -o default 2>/dev/null
    fi
}
complete -F _ops_complete ops operations
"""
_ZSH = """\
#compdef ops operations
_ops() {
    local -a found
    local line
    found=("${(@f)$(${words[1]} __complete zsh "${(j: :)words[1,CURRENT]}" 2>/dev/null)}")
    if [[ ${found[1]} == __files__ ]]; then
        _files
        return
    fi
    local -a open closed
    for line in $found; do
        [[ -z $line ]] && continue
        if [[ $line == *[=./] ]]; then open+=("$line"); else closed+=("$line"); fi
    done
    (( ${#open} )) && compadd -S '' -- $open
    (( ${#closed} )) && compadd -- $closed
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then _ops "$@"; else compdef _ops ops operations; fi
"""
_FISH = """\
function __ops_complete
    set -l line (commandline -cp)
    set -l program (string split -m 1 ' ' -- $line)[1]
    for found in ($program __complete fish "$line" 2>/dev/null)
        if test "$found" = __files__
            __fish_complete_path (commandline -ct)
        else
            printf '%s\\n' $found
        end
    end
end
complete -c ops -f -a '(__ops_complete)'
complete -c operations -f -a '(__ops_complete)'
"""
_SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def run(args: ParsedArguments) -> int:
    """Print a shell's completion script."""
    script = _SCRIPTS[args.shell]
    write_either(args, {"shell": args.shell, "script": script}, script)
    return OK


COMMAND = Command(
    name="completion",
    summary=SUMMARIES["completion"],
    run=run,
    arguments=(Argument("SHELL", "bash, zsh or fish", choices=tuple(_SCRIPTS)),),
    notes="""
Operations and fields are completed from the cache that `ops ls` writes. Completion never opens a source.
""",
    examples=(
        ("source <(ops completion bash)", "in ~/.bashrc"),
        ("ops completion zsh > ~/.zfunc/_ops", "in a directory of fpath"),
        ("ops completion fish > ~/.config/fish/completions/ops.fish", "for fish"),
    ),
)

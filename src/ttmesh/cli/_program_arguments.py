"""Command lines that end with a program: ttmesh's options come before it, everything after it is the program's."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence

from ttmesh.base.errors import suggest_names

MODULE = "-m"


def add_program(parser: argparse.ArgumentParser, metavar: str = "script.py ...") -> None:
    """Let the command line end with a program; `split_at_program` finds where it begins."""
    parser.add_argument("program", nargs=argparse.REMAINDER, metavar=metavar, help="the program and its arguments")
    parser.allow_abbrev = False
    parser.set_defaults(ends_with_program=True)


def split_at_program(parser: argparse.ArgumentParser, words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Our options, `-m MODULE` among them, and the program: from the first word that is neither an option nor a value."""
    known = parser._option_string_actions
    i = 0
    while i < len(words):
        word = words[i]
        if word == "--":
            return list(words[:i]), list(words[i + 1 :])
        if word == "-" or not word.startswith("-"):
            break
        module = MODULE in known and word.startswith(MODULE)
        takes_value = word in known and known[word].nargs != 0
        i += 2 if takes_value else 1
        if module:
            break
    return list(words[:i]), list(words[i:])


def mention_own_options(args: argparse.Namespace, arguments: Sequence[str]) -> None:
    """Print which of the program's arguments are named like our options, and the line that gives them to us."""
    own, rest = _separate(args.parser, arguments)
    if not own:
        return
    before = list(args.given[: len(args.given) - len(arguments)])
    program = before[-1].removeprefix(MODULE) or before[-1]
    at = len(before) - (2 if len(before) > 1 and before[-2] in (MODULE, "--") else 1)
    options = [*before[:at], *(word for option in own for word in option)]
    moved = [*args.prog.split(), *options, *before[at:], *rest]
    names = " and ".join(option[0].partition("=")[0] for option in own)
    comes, it = ("comes", "it") if len(own) == 1 else ("come", "them")
    print(
        f"{args.prog}: {names} {comes} after {program} and {'goes' if len(own) == 1 else 'go'} to it; "
        f"to give {it} to ttmesh, write `{shlex.join(moved)}`.",
        file=sys.stderr,
    )


def describe_unknown(parser: argparse.ArgumentParser, words: Sequence[str]) -> str:
    """The error for words that a parser does not accept."""
    names = [name for name in parser._option_string_actions if name.startswith("--")]
    wrong = next((word.partition("=")[0] for word in words if word.startswith("--")), None)
    hint = suggest_names(wrong, names).rstrip("?.") if wrong else ""
    return f"unrecognized arguments: {' '.join(words)[:200]}" + (f". {hint}?" if hint.startswith("Did") else "")


def _separate(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> tuple[list[list[str]], list[str]]:
    """The options of a parser, each with its value, and the other arguments."""
    known = {name: action for name, action in parser._option_string_actions.items() if name.startswith("--")}
    known.pop("--help", None)
    own: list[list[str]] = []
    rest: list[str] = []
    words = list(arguments)
    while words:
        word = words.pop(0)
        name, equals, _ = word.partition("=")
        if name not in known:
            rest.append(word)
            continue
        own.append([word])
        if known[name].nargs != 0 and not equals and words and not words[0].startswith("-"):
            own[-1].append(words.pop(0))
    return own, rest

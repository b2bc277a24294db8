"""Recordings: a history replays byte for byte, hostile repositories run nothing, frames are the same at each read."""

import json
import os
import re
import subprocess
import sys
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from shoal.errors import FbamError, StorageError
from shoal.fbam import FrameShape
from shoal.fbam.recording import (
    Change,
    Player,
    Recording,
    RecordingSource,
    RecordOptions,
    RecordReport,
    read_recording,
    record_repository,
    replays,
)
from shoal.fbam.recording.actions import BACKSPACE, SAVE, ActionTable, moving
from shoal.fbam.recording.editor import MAX_TEXT_BYTES, Arrow, Editor
from shoal.fbam.recording.keystrokes import replayed
from shoal.fbam.recording.recording_file import MAX_ACTIONS, text_hash
from shoal.fbam.recording.recording_source import SNAPSHOT_BYTES
from shoal.fbam.recording.repository import Limits
from shoal.fbam.recording.screen import draw_screen, screen_text
from shoal.fbam.recording.terminal import list_changes, play, print_frame, shape_for
from tests.fbam.repositories import git, make_repository

SHAPE = FrameShape(rows=5, columns=20)
FIRST = b"def add(a, b):\n    return a - b\n"
FIXED = b"def add(a, b):\n    return a + b\n\n\ndef twice(a):\n    return add(a, a)\n"


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text that is added and changed, a binary file, a file with a control character, and a link."""
    path = tmp_path_factory.mktemp("history") / "repository"
    make_repository(path, {"add.py": FIRST, "data.bin": b"\0\1"}, {"add.py": FIXED, "bell.txt": b"ring\a\n"})
    (path / "link").symlink_to("add.py")
    git(path, "add", "--all")
    git(path, "commit", "--quiet", "--message", "link")
    return path


def record(repository: Path, out: Path, **options: object) -> RecordReport:
    settings = {"limits": Limits(seconds=60), **options}
    return record_repository(repository, out, RecordOptions(**settings))[1]  # type: ignore[arg-type]


def test_a_history_replays_byte_for_byte_or_is_left_out(history: Path, tmp_path: Path) -> None:
    report = record(history, tmp_path / "r.jsonl")
    assert (report.eligible, report.kept, report.not_text) == (3, 2, 1)
    assert report.left_out == {"types a control character": 1}
    recording = read_recording(tmp_path / "r.jsonl")
    assert [change.path for change in recording.changes] == ["add.py", "add.py"], "the oldest first"
    assert [change.before.encode() for change in recording.changes] == [b"", FIRST]
    assert all(replays(change, recording.table) for change in recording.changes)
    assert b"return" in recording.table.words


def test_a_recording_whose_actions_were_edited_does_not_replay(history: Path, tmp_path: Path) -> None:
    record(history, tmp_path / "r.jsonl")
    recording = read_recording(tmp_path / "r.jsonl")
    change = recording.changes[1]
    assert not replays(change.model_copy(update={"actions": [ord("x"), *change.actions]}), recording.table)


def test_a_change_that_does_not_replay_is_neither_shown_nor_trained_on(history: Path, tmp_path: Path) -> None:
    record(history, tmp_path / "r.jsonl")
    text = (tmp_path / "r.jsonl").read_text()
    (tmp_path / "r.jsonl").write_text(text.replace('"before":"def add(a, b)', '"before":"def odd(a, b)'))
    recording = read_recording(tmp_path / "r.jsonl")
    said = r"the change of add\.py in commit [0-9a-f]{12} does not give the text of its after_sha256; record it again"
    source = RecordingSource(recording, SHAPE, "heldout")
    with pytest.raises(FbamError, match=said):
        source.draw(np.random.default_rng(0), 1, 2).frames(0, 2)
    with pytest.raises(FbamError, match=said):
        print_frame(recording, 1, 0, SHAPE, Console(quiet=True))
    print_frame(recording, 0, 0, SHAPE, Console(quiet=True))


HUGE = MAX_TEXT_BYTES + 1


@pytest.mark.parametrize(
    ("before", "word", "actions", "said"),
    [
        ("x" * HUGE, "    ", [ord("x")], "line 2: 65,537 bytes before, allowed are 65,536"),
        ("\n" * 40_000, "    ", [ord("x")], "line 2: 40,000 lines, allowed are 16,384"),
        ("", "x" * 64, [380] * 1025, "line 2: 65,600 bytes that are typed, allowed are 65,536"),
        ("", "\n" * 64, [380] * 257, "line 2: 16,448 lines, allowed are 16,384"),
        ("", "    ", [ord("x")] * 8193, "line 2: actions: List should have at most 8192 items"),
    ],
)
def test_a_change_that_would_be_dear_to_replay_is_refused(
    tmp_path: Path, before: str, word: str, actions: list[int], said: str
) -> None:
    path = tmp_path / "r.jsonl"
    change = {"commit": "0" * 40, "path": "a", "before": before, "actions": actions, "after_sha256": "0" * 64}
    path.write_text(json.dumps({"format": 1, "words": [word]}) + "\n" + json.dumps(change) + "\n")
    with pytest.raises(FbamError, match=said):
        read_recording(path)


def test_the_largest_changes_that_are_recorded_can_be_read(tmp_path: Path) -> None:
    """Few lines become many and many few: as far as the recorder goes in lines, actions and bytes."""
    few, most = b"a\n" * 400, b"\n" * (MAX_ACTIONS - 1)
    many = few + b"\n" * 7_700
    path = make_repository(tmp_path / "large", {"a": few, "b": most, "c": most + b"\n"}, {"a": many}, {"a": few})
    report = record(path, tmp_path / "r.jsonl")
    assert report.left_out == {"more than 8192 actions": 1}
    changes = read_recording(tmp_path / "r.jsonl").changes
    assert [change.path for change in changes] == ["a", "b", "a", "a"]
    assert max(len(change.actions) for change in changes) == MAX_ACTIONS
    for options in ({"limits": Limits(blob_bytes=HUGE)}, {"max_actions": MAX_ACTIONS + 1}):
        with pytest.raises(FbamError, match=r": a recording has at most [\d,]+; give that or less"):
            record(path, tmp_path / "r.jsonl", **options)


def test_snapshots_of_a_change_stay_small_and_give_the_same_editors() -> None:
    """A text of many lines, of which each keystroke makes another list."""
    before, table = b"line\n" * 10_000, ActionTable()
    actions = [*b"xy\n" * 400, *moving(Arrow.DOWN, 3000), BACKSPACE, *b"z" * 100, SAVE]
    after = text_hash(replayed(before, actions, table))
    change = Change(commit="0" * 40, path="a", before=before.decode(), actions=actions, after_sha256=after)
    player, editor = Player(change, table), Editor.opened(before)
    assert player.snapshot_bytes <= SNAPSHOT_BYTES
    for at, action in enumerate(actions):
        if at % 37 == 0 or at == len(actions) - 1:
            (found,) = player.editors(at, at + 1)
            assert found == editor, at
        editor = table.apply(editor, action)
    assert list(player.editors(len(actions), len(actions) + 1)) == [editor]


def test_frames_are_drawn_when_they_are_read_and_alike_in_any_order(history: Path, tmp_path: Path) -> None:
    record(history, tmp_path / "r.jsonl", words=0)
    recording = read_recording(tmp_path / "r.jsonl")
    source = RecordingSource(recording, SHAPE)
    length = source.frames
    stream = source.draw(np.random.default_rng(0), 1, length)
    whole, targets = stream.frames(0, length), stream.targets(0, length)
    backwards = [stream.frames(begin, min(begin + 7, length)) for begin in reversed(range(0, length, 7))]
    assert torch.equal(whole, torch.cat(backwards[::-1], dim=1))
    assert targets[0].tolist() == [action for change in source.changes for action in change.actions]
    editor = Editor.opened(b"")
    for at in range(len(recording.changes[0].actions)):
        expected = draw_screen(editor, "add.py", SHAPE)
        assert (whole[0, at].numpy() == expected).all(), at
        editor = recording.table.apply(editor, recording.changes[0].actions[at])


def test_the_end_of_a_history_is_held_out_and_no_frame_is_in_both_parts(tmp_path: Path) -> None:
    versions = [{"a.txt": b"line\n" * (n + 1)} for n in range(12)]
    record(make_repository(tmp_path / "many", *versions), tmp_path / "r.jsonl")
    recording = read_recording(tmp_path / "r.jsonl")
    train, heldout = (RecordingSource(recording, SHAPE, part) for part in ("train", "heldout"))
    assert [*train.changes, *heldout.changes] == list(recording.changes)
    assert train.frames > heldout.frames > 0
    with pytest.raises(FbamError, match=r"its heldout part has \d+ frames, sequences need 9999"):
        heldout.draw(np.random.default_rng(0), 1, 9999)


HOOKS = ("post-checkout", "pre-commit", "reference-transaction", "fsmonitor-watchman", "post-index-change")


def test_a_hostile_repository_runs_nothing(history: Path, tmp_path: Path) -> None:
    """Hooks, filters, text conversion, a pager, a fetch of missing objects: each would leave a file."""
    trap, hostile = tmp_path / "sprung", tmp_path / "hostile"
    git(tmp_path, "clone", "--quiet", "--no-hardlinks", str(history), str(hostile))
    script = tmp_path / "trap.sh"
    script.write_text(f"#!/bin/sh\ntouch {trap}\ncat\n")
    script.chmod(0o755)
    for hook in HOOKS:
        (hostile / ".git" / "hooks").mkdir(exist_ok=True)
        (hostile / ".git" / "hooks" / hook).write_text(script.read_text())
        (hostile / ".git" / "hooks" / hook).chmod(0o755)
    (hostile / ".git" / "info").mkdir(exist_ok=True)
    (hostile / ".git" / "info" / "attributes").write_text("* filter=trap diff=trap\n")
    for key in (
        "core.pager",
        "core.fsmonitor",
        "core.sshCommand",
        "diff.external",
        "diff.trap.textconv",
        "diff.trap.command",
        "filter.trap.smudge",
        "filter.trap.clean",
        "alias.cat-file",
        "alias.rev-list",
        "uploadpack.packObjectsHook",
        "credential.helper",
    ):
        git(hostile, "config", key, f"!{script}" if key.startswith("alias") else str(script))
    # A partial clone whose missing objects would be fetched by running a command.
    git(hostile, "config", "extensions.partialClone", "origin")
    git(hostile, "config", "remote.origin.url", f"ext::{script}")
    git(hostile, "config", "remote.origin.promisor", "true")
    git(hostile, "config", "protocol.ext.allow", "always")
    report = record(hostile, tmp_path / "r.jsonl")
    assert report.kept == 2
    missing = git(history, "rev-parse", "HEAD~1:add.py").strip()
    for pack in (hostile / ".git" / "objects" / "pack").iterdir():
        pack.chmod(0o644)
        pack.rename(tmp_path / pack.name)
    for pack in tmp_path.glob("*.pack"):
        with pack.open("rb") as data:
            git_unpack(hostile, data.read())
    (hostile / ".git" / "objects" / missing[:2] / missing[2:]).unlink()
    assert record(hostile, tmp_path / "r.jsonl").not_text == 2, "a missing object is left out, not fetched"
    assert not trap.exists()


@pytest.fixture
def private(tmp_path: Path) -> Path:
    """A repository that its owner can read, and that the maker of another one must not read."""
    return make_repository(tmp_path / "private", {"secret.txt": b"secret\n"})


def name_private_head(private: Path, git_directory: Path) -> Path:
    """A git directory that has nothing of its own but a HEAD at the private commit, as one that guessed it would."""
    (git_directory / "objects" / "info").mkdir(parents=True)
    (git_directory / "HEAD").write_text(git(private, "rev-parse", "HEAD"))
    return git_directory


def test_a_repository_that_borrows_the_objects_of_another_is_refused(private: Path, tmp_path: Path) -> None:
    hostile = name_private_head(private, tmp_path / "hostile" / ".git")
    (hostile / "objects" / "info" / "alternates").write_text(f"{private}/.git/objects\n")
    with pytest.raises(FbamError, match=r"it borrows objects \(objects/info/alternates\).*git repack -a -d"):
        record(hostile.parent, tmp_path / "r.jsonl")
    git(tmp_path, "clone", "--quiet", "--shared", str(private), str(tmp_path / "shared"))
    git(tmp_path / "shared", "repack", "-a", "-d", "-q")
    (tmp_path / "shared" / ".git" / "objects" / "info" / "alternates").unlink()
    assert record(tmp_path / "shared", tmp_path / "r.jsonl").kept == 1, "what the error says to do is enough"


@pytest.mark.parametrize("target", ["private/.git", "private/.git/worktrees/linked", "nowhere", "a\0b"])
def test_a_git_file_that_names_a_directory_which_does_not_name_it_is_refused(
    private: Path, tmp_path: Path, target: str
) -> None:
    git(private, "worktree", "add", "--quiet", "--detach", str(tmp_path / "linked"))
    (tmp_path / "hostile").mkdir()
    (tmp_path / "hostile" / ".git").write_text(f"gitdir: {tmp_path}/{target}\n")
    said = r"its \.git names .*, which is not a linked work tree of it|it names the directory .*x00"
    with pytest.raises(FbamError, match=said):
        record(tmp_path / "hostile", tmp_path / "r.jsonl")
    assert record(tmp_path / "linked", tmp_path / "r.jsonl").kept == 1, "a work tree of one's own is read"


@pytest.mark.parametrize("own", [".git", ".git/worktrees/x", "elsewhere"])
def test_a_commondir_that_the_directory_is_not_in_is_refused(private: Path, tmp_path: Path, own: str) -> None:
    directory = name_private_head(private, tmp_path / "hostile" / own)
    (directory / "commondir").write_text(f"{private}/.git\n")
    with pytest.raises(FbamError, match=r"its commondir names .*/private/\.git, which does not name .* as a work tree"):
        record(directory, tmp_path / "r.jsonl")


@pytest.mark.parametrize("link", [".git", ".git/objects", ".git/objects/pack", ".git/objects/pack/one.pack"])
def test_objects_behind_symbolic_links_are_refused(private: Path, tmp_path: Path, link: str) -> None:
    git(private, "repack", "-a", "-d", "-q")
    hostile = tmp_path / "hostile"
    if link != ".git":
        name_private_head(private, hostile / ".git")
        (hostile / ".git" / "objects" / "info").rmdir()
        (hostile / ".git" / "objects").rmdir()
    (hostile / link).parent.mkdir(parents=True, exist_ok=True)
    target = next((private / ".git" / "objects" / "pack").glob("*.pack")) if link.endswith(".pack") else private / link
    (hostile / link).symlink_to(target)
    with pytest.raises(FbamError, match=r"is a symbolic link; (give the repository|objects must be)"):
        record(hostile, tmp_path / "r.jsonl")


def git_unpack(repository: Path, pack: bytes) -> None:
    subprocess.run(["git", "-C", str(repository), "unpack-objects", "-q"], input=pack, check=True)


def test_sizes_are_bounded(tmp_path: Path) -> None:
    path = make_repository(tmp_path / "large", {"large.txt": b"x\n" * 600, "small.txt": b"x\n"})
    report = record(path, tmp_path / "r.jsonl", limits=Limits(blob_bytes=1000, seconds=60))
    assert (report.eligible, report.not_text) == (1, 1)
    with pytest.raises(FbamError, match=r"repository .*: git diff-tree failed"):
        record(path, tmp_path / "r.jsonl", limits=Limits(output_bytes=100, seconds=60))


def test_limits_of_the_users_own_that_are_lower_stay(history: Path, tmp_path: Path) -> None:
    script = "import sys; from shoal.cli import main; sys.argv = ['shoal', *sys.argv[1:]]; main()"
    command = [sys.executable, "-c", script, "fbam", "record", str(history), str(tmp_path / "r.jsonl")]
    lower = ["sh", "-c", 'ulimit -f 100000 && exec "$@"', "sh", *command]
    found = subprocess.run(lower, capture_output=True, text=True, timeout=120, check=False)
    assert found.returncode == 0, found.stderr
    assert "2 of 3 text changes" in found.stdout


def test_a_repository_whose_path_is_not_utf8_is_read(history: Path, tmp_path: Path) -> None:
    place = tmp_path / os.fsdecode(b"caf\xe9")
    git(tmp_path, "clone", "--quiet", str(history), str(place))
    assert record(place, tmp_path / "r.jsonl").kept == 2


def test_a_path_without_end_is_left_out_and_refused_in_a_recording(tmp_path: Path) -> None:
    """Each frame has its path in the status line, and a line of a recording is bounded."""
    path = make_repository(tmp_path / "long", {"a": b"text\n"})
    blob = bytes.fromhex(git(path, "rev-parse", "HEAD:a").strip())
    tree = tmp_path / "tree"
    tree.write_bytes(b"100644 " + b"p" * 9_000_000 + b"\0" + blob)
    name = git(path, "hash-object", "-t", "tree", "-w", "--literally", str(tree)).strip()
    git(path, "update-ref", "HEAD", git(path, "commit-tree", "-m", "long", "-p", "HEAD", name).strip())
    report = record(path, tmp_path / "r.jsonl")
    assert report.left_out == {"a path of more than 4,096 characters": 1}
    assert [change.path for change in read_recording(tmp_path / "r.jsonl").changes] == ["a"]
    text = (tmp_path / "r.jsonl").read_text().replace('"path":"a"', f'"path":"{"p" * 4097}"')
    (tmp_path / "r.jsonl").write_text(text)
    with pytest.raises(FbamError, match="line 2: path: String should have at most 4096 characters"):
        read_recording(tmp_path / "r.jsonl")


def test_a_place_that_no_recording_can_be_written_to_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot be written because it is a directory; give the name of a file"):
        record(tmp_path / "never looked at", tmp_path)


def test_the_objects_of_linked_bare_and_packed_repositories_are_found(history: Path, tmp_path: Path) -> None:
    git(history, "worktree", "add", "--quiet", "--detach", str(tmp_path / "linked"))
    git(tmp_path, "clone", "--quiet", "--bare", str(history), str(tmp_path / "bare"))
    git(tmp_path / "bare", "pack-refs", "--all")
    git(tmp_path, "clone", "--quiet", "--depth=1", f"file://{history}", str(tmp_path / "shallow"))
    for place in ("linked", "bare"):
        assert record(tmp_path / place, tmp_path / "r.jsonl").kept == 2, place
    assert record(tmp_path / "shallow", tmp_path / "r.jsonl").kept == 1, "the one commit adds the file as it is"


BRANCHES = (
    "fix#12",
    "fix(x)",
    "größe",
    "a,b=c;d%e&f'g\"h!i$j{k}l|m<n>o",
    "a\u2028b",
    "end\u00a0",
    os.fsdecode(b"caf\xe9"),
)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("branch", BRANCHES)
def test_any_branch_that_git_allows_can_be_recorded(tmp_path: Path, branch: str, packed: bool) -> None:
    repository = make_repository(tmp_path / "named", {"a": b"text\n"})
    git(repository, "checkout", "--quiet", "-b", branch)
    if packed:
        git(repository, "pack-refs", "--all")
    assert record(repository, tmp_path / "r.jsonl").kept == 1


@pytest.mark.parametrize("name", ["refs/../../../private/.git/refs/heads/main", "refs/heads/a\0b", "elsewhere"])
def test_a_head_that_names_no_branch_is_not_followed(private: Path, tmp_path: Path, name: str) -> None:
    repository = make_repository(tmp_path / "named", {"a": b"text\n"})
    (repository / ".git" / "elsewhere").write_text(git(repository, "rev-parse", "main"))
    (repository / ".git" / "HEAD").write_text(f"ref: {name}\n")
    with pytest.raises(FbamError, match="HEAD names no SHA-1 commit"):
        record(repository, tmp_path / "r.jsonl")


def test_what_is_not_a_repository_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(FbamError, match=r"repository .*: not a git repository; give the directory that has .git"):
        record(tmp_path, tmp_path / "r.jsonl")
    (tmp_path / ".git" / "objects").mkdir(parents=True)
    os.mkfifo(tmp_path / ".git" / "HEAD")
    with pytest.raises(FbamError, match="HEAD names no SHA-1 commit"):
        record(tmp_path, tmp_path / "r.jsonl")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "empty; write one with: shoal fbam record"),
        ("nonsense\n", "line 1: it: Invalid JSON"),
        ('{"format":2,"words":[]}\n', "line 1: format: Input should be 1; format 1 is read"),
        ('{"format":1,"words":["x"]}\n', "line 1: word b'x': give 2 to 64 bytes"),
        ('{"format":1,"words":[]}\n{"commit":"c"}\n', "line 2: commit: String should match pattern"),
    ],
)
def test_a_damaged_recording_is_refused_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "r.jsonl").write_text(text)
    with pytest.raises(FbamError) as refused:
        read_recording(tmp_path / "r.jsonl")
    assert said in str(refused.value)


def test_an_action_outside_the_table_is_refused(history: Path, tmp_path: Path) -> None:
    record(history, tmp_path / "r.jsonl", words=0)
    text = (tmp_path / "r.jsonl").read_text().replace('"actions":[', '"actions":[380,', 1)
    (tmp_path / "r.jsonl").write_text(text)
    with pytest.raises(FbamError, match=r"line 2: action 380: its table has 0 .. 379"):
        read_recording(tmp_path / "r.jsonl")


def test_a_recording_is_watched_without_obeying_escapes_in_it(history: Path, tmp_path: Path) -> None:
    record(history, tmp_path / "r.jsonl")
    recording = read_recording(tmp_path / "r.jsonl")
    out = StringIO()
    console = Console(file=out, width=100, color_system=None)
    list_changes(recording, console)
    print_frame(recording, 1, len(recording.changes[1].actions), FrameShape(rows=8, columns=30), console)
    play(recording, 0, 1e6, SHAPE, console)
    for said in ("add.py", "return a + b", "end", "add.py 6:21"):
        assert said in out.getvalue()
    with pytest.raises(FbamError, match=r"change 2: the recording has 0 .. 1"):
        print_frame(recording, 2, 0, SHAPE, console)
    with pytest.raises(FbamError, match=r"change 0: frame 9999: it has 0 .."):
        print_frame(recording, 0, 9999, SHAPE, console)
    rows = screen_text(draw_screen(Editor.opened(b"\x1b[31m\x9b\ta"), "\x1b]0;x", SHAPE))
    assert rows[0].startswith("·[31m·→a")
    assert all(row.isprintable() for row in rows)


@pytest.mark.parametrize(("height", "width"), [(24, 80), (10, 40), (5, 20), (2, 10)])
def test_a_frame_has_room_in_the_terminal_for_the_line_that_says_where_one_is(
    history: Path, tmp_path: Path, height: int, width: int
) -> None:
    record(history, tmp_path / "r.jsonl")
    recording, out = read_recording(tmp_path / "r.jsonl"), StringIO()
    console = Console(file=out, width=width, height=height, force_terminal=True, color_system=None)
    shape = shape_for(console, None, None)
    play(recording, 0, 1e6, shape, console)
    assert "add.py" in out.getvalue() or shape.rows < 3
    actions = len(recording.changes[0].actions)
    for at in (0, actions):
        assert re.search(rf"(?<!\d){at} of {actions}", out.getvalue()), "the line below each frame"
    list_changes(recording, Console(file=out, width=width))
    assert shape_for(console, 30, 100) == FrameShape(rows=30, columns=100), "what was asked for"
    assert shape_for(Console(file=out), None, None) == FrameShape(rows=24, columns=80), "no terminal"


@pytest.mark.parametrize("width", [20, 30])
def test_numbers_of_changes_are_whole_in_a_narrow_terminal(tmp_path: Path, width: int) -> None:
    change = Change(commit="a" * 40, path="some/long/name.py", before="", actions=[SAVE], after_sha256="0" * 64)
    out = StringIO()
    list_changes(Recording(ActionTable(), (change,) * 1200), Console(file=out, width=width))
    assert "1199" in out.getvalue()


def test_a_screen_follows_the_cursor_to_any_place() -> None:
    text = b"\n".join(b"%d " % n * 40 for n in range(50))
    for row, column in ((0, 0), (49, 0), (30, 110), (49, 120)):
        editor = Editor(tuple(text.split(b"\n")), row, column)
        for shape in (SHAPE, FrameShape(rows=1, columns=1), FrameShape(rows=48, columns=160)):
            cells = draw_screen(editor, "name", shape)
            under = text.split(b"\n")[row][column : column + 1] or b" "
            cursor = np.argwhere((cells[1] == 0) & (cells[2] == 7))
            assert len(cursor) == 1
            assert cells[0][tuple(cursor[0])] == under[0]

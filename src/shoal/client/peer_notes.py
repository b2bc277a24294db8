"""Notes of the validators that share a run's files, as they come from the coordinator, in the order of verdicts.

All of them are one owner's and go by what any of them found. A vote on the ledger comes from these notes as well: the
validator that is drawn for a step has judged a part of its files.
"""

import threading

from shoal.client.client import CoordinatorClient
from shoal.protocol.judge_note import FiledNote, FiledNotes
from shoal.validate.evidence.vote_log import Vote, Votes


class PeerNotes:
    """What was said since the last look. Two threads ask: the one that judges, and the one that votes."""

    def __init__(self, link: CoordinatorClient, votes: Votes) -> None:
        """`link` is for this alone."""
        self._link = link
        self.me = link.key.address
        self._votes = votes
        self._lock = threading.Lock()
        self._read = 0
        self._fresh: list[FiledNote] = []

    def pull(self) -> None:
        """Reads what is new, and notes the votes of others: then the ledger can be told of all files."""
        with self._lock:
            while notes := self._link.ask(FiledNotes, "GET", f"/v1/notes?after={self._read}").notes:
                for filed in notes:
                    self._read = max(self._read, filed.number)
                    self._fresh.append(filed)
                    own, note = self._votes.of(filed.step, filed.submission), filed.note
                    vote = Vote(note.letter, filed.sha256, note.tokens, note.proof)
                    # Void says nothing of the file: the verdict that stands says more, as after one that came too late.
                    if vote != own and (own is None or own.letter == "v" or filed.judge == self.me):
                        self._votes.note(filed.step, filed.submission, vote)

    def fresh(self) -> list[FiledNote]:
        """Notes that were not given out yet."""
        self.pull()
        with self._lock:
            found, self._fresh = self._fresh, []
        return found

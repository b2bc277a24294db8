"""Evidence token by token: the accused sample of a bundle beside the other samples of its group."""

import re

from shoal.errors import RolloutError
from shoal.page.privacy import public_text
from shoal.page.rollouts import sample_document
from shoal.page.source import RunFiles
from shoal.page.tokens import decoder_of
from shoal.validate.evidence.bundle import bundle_name, read_bundle

MAX_BUNDLE = 64 << 20
MAX_OTHERS = 15
TOKEN = re.compile(r"token (\d+)")


def evidence_document(files: RunFiles, step: int, submission: int) -> dict[str, object]:
    """What a rejection rests on. The file is chosen by numbers, never by a path that a verdict names."""
    path = files.path / "evidence" / bundle_name(step, submission)
    try:
        if path.stat().st_size > MAX_BUNDLE:
            raise RolloutError(f"{path.name}: has more than {MAX_BUNDLE >> 20} MiB; replay it instead")
        bundle = read_bundle(path)
    except (OSError, RolloutError) as error:
        return {"why": public_text(error), "accused": None, "others": []}
    if not bundle.rollouts or files.run is None:
        return {
            "why": "The bundle holds no samples: the finding is about the file as a whole.",
            "accused": None,
            "others": [],
        }
    decoder = decoder_of(files.run.base_model)
    at = (bundle.finding.sample or bundle.first) - bundle.first
    at = at if 0 <= at < len(bundle.rollouts) else 0
    named = TOKEN.search(str(bundle.finding.claimed))
    others = [n for n in range(len(bundle.rollouts)) if n != at][:MAX_OTHERS]
    return {
        "why": "",
        "version": bundle.version,
        "claimed_token": int(named[1]) if named else None,
        "prompt": decoder.text(bundle.rollouts[at].prompt.tolist())[:20_000],
        "accused": {"number": bundle.first + at, **sample_document(bundle.rollouts[at], decoder, tokens=True)},
        "others": [{"number": bundle.first + n, **sample_document(bundle.rollouts[n], decoder)} for n in others],
    }

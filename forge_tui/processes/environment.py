"""The environment a worker or a compiler gets: no secrets, quiet libraries."""

from __future__ import annotations

import os
import re

_SECRET = re.compile(r"(key|token|secret|password|passwd|credential|authorization|cookie)", re.IGNORECASE)
_SECRET_PREFIX = ("OPENAI_", "ANTHROPIC_", "AWS_", "AZURE_", "GOOGLE_", "GEMINI_", "HF_", "HUGGING_FACE_",
                  "LITELLM_", "SSH_", "GITHUB_", "GH_", "MISTRAL_", "DEEPSEEK_", "GROQ_", "OPENROUTER_")  # fmt: skip
#: where models lie and whether the network may be used, nothing of which is secret
_NO_SECRET = frozenset({"HF_HOME", "HF_HUB_CACHE", "HF_MODULES_CACHE", "HF_HUB_OFFLINE"})


def clean_environment(extra: dict[str, str] | None = None) -> dict[str, str]:
    """The caller's environment without anything that looks like a secret, plus `extra`."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in _NO_SECRET or (not _SECRET.search(name) and not name.startswith(_SECRET_PREFIX))
    }
    return kept | (extra or {})

"""The environment a worker or a compiler gets: no secrets, quiet libraries."""

from __future__ import annotations

import os
import re

_SECRET = re.compile(
    r"key|token|secret|passw|passphrase|credential|authorization|cookie|private|webhook|netrc|pgpass"
    r"|(?:^|_)(?:auth|pass|pwd|pat|dsn|sas|login)(?:_|$)(?<!^pwd)",
    re.IGNORECASE,
)
_SECRET_PREFIX = ("OPENAI_", "ANTHROPIC_", "AWS_", "AZURE_", "GOOGLE_", "GEMINI_", "HF_", "HUGGING_FACE_",
                  "LITELLM_", "SSH_", "GITHUB_", "GH_", "MISTRAL_", "DEEPSEEK_", "GROQ_", "OPENROUTER_", "GITLAB_",
                  "VAULT_", "COHERE_", "XAI_", "TOGETHER_", "FIREWORKS_", "REPLICATE_", "PERPLEXITY_", "CEREBRAS_",
                  "TWINE_")  # fmt: skip
#: where models lie, whether the network may be used, and folders, nothing of which is secret
_NO_SECRET = frozenset({"HF_HOME", "HF_HUB_CACHE", "HF_MODULES_CACHE", "HF_HUB_OFFLINE", "TOKENIZERS_PARALLELISM",
                        "PWD", "OLDPWD"})  # fmt: skip
#: values that are keys whatever they are called, by the marks that their issuers give them
_KEY = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"sk-[\w-]{16,}|[srp]k_(?:live|test)_\w{10,}|(?:AKIA|ASIA)[A-Z0-9]{16}|gh[pousr]_\w{20,}|github_pat_\w{20,}"
    r"|glpat-[\w-]{16,}|hf_[A-Za-z0-9]{20,}|xox[a-z]-[\w-]{10,}|AIza[\w-]{30,}|ya29\.[\w-]{20,}|gsk_\w{20,}"
    r"|xai-[\w-]{20,}|r8_\w{20,}|npm_\w{20,}|pypi-[\w-]{20,}|dop_v1_\w{20,}|eyJ[\w-]{8,}\.eyJ[\w-]{8,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY|hooks\.slack\.com/services/\w"
    r"|(?:AccountKey|SharedAccessSignature|sig)=[\w%+/=]{16,}"
    r"|(?:password|passwd|pwd|secret|token|api_?key)\s*[=:]\s*[^\s;&]{3,})",
    re.IGNORECASE | re.ASCII,
)
#: the user and the password before an address
_USER = re.compile(r"(?<=://)[^\s/]*@")
_BARE_USER = re.compile(r"^[^\s/]*@")


def clean_environment(extra: dict[str, str] | None = None) -> dict[str, str]:
    """The caller's environment without anything that looks like a secret, plus `extra`.

    Names and values are looked at; addresses (proxies, package indexes, databases) lose user and password.
    """
    kept: dict[str, str] = {}
    for name, value in os.environ.items():
        if name not in _NO_SECRET and (_SECRET.search(name) or name.upper().startswith(_SECRET_PREFIX)):
            continue
        value = _USER.sub("", value)
        if name.lower().endswith("_proxy"):
            value = _BARE_USER.sub("", value)
            if "@" in value:
                continue  # a password with a slash: where it ends cannot be told
        if not _KEY.search(value):
            kept[name] = value
    return kept | (extra or {})

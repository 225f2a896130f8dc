"""Logged agent traffic -> what a KV cache could reuse of it.

Knows nothing of engines; needs the extra ``[cli]`` for compressed logs and tokenizers.
"""

"""Rows beyond SGLang's KV pool: written behind, fetched ahead, copied into batches.

`off` stands in where nothing is configured; everything else is imported only when something is.
"""

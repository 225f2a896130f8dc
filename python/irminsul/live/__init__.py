"""A running SGLang server -> what irminsul does there: proofs and measurements over HTTP.

``client`` speaks the server's protocol, ``verify`` proves reuse and ``bench`` replays recorded
traffic. Nothing here imports an engine; the standard library is enough to talk to one.
"""

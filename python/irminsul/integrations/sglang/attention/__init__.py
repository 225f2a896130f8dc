"""SGLang's attention interface -> irminsul's MLA kernel: ``--attention-backend irminsul``.

`registration` names it, `rows` and `kernels` say which keys a batch reads, `backend` computes.
"""

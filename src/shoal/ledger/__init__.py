"""A memory that no party controls: who joined, who did what, who judged it, what was earned and lost.

    ledger = SqliteLedger.open(path, key, "run", terms)     # the coordinator's file
    ledger.enter(key, Register(node=address))               # durable when it returns; Refused says which rule it breaks
    verify_file(path)                                       # anybody, with the file alone

`rules.py` is the law and the only place of it; `acts.py` what can be entered; `entry.py` how it is signed and linked;
`store.py` the embedded ledger; `evm.py` the same on a chain. Nothing here needs torch or a web server.
"""

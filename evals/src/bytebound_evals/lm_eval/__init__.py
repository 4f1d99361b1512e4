"""The adapter to lm-eval (EleutherAI's harness); needs the extra ``bytebound-evals[lm-eval]``.

``model`` is the adapter itself, ``cli`` the command ``bytebound-lm-eval``. Nothing here is imported
by the rest of the package.
"""

"""The HTTP server: OpenAI's and Anthropic's protocols over one engine, for one user's programs.

``app.build_app`` makes the application of an engine; ``bytebound serve`` runs it. Knows the
engine's public surface and ``text/``, and nothing below.
"""

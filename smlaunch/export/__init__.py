"""A plan for somebody else's orchestrator: the same requests, the same rules, in that orchestrator's words.

Whatever is decided here is read from ``chain.workflow``; what an orchestrator has no word for is refused
by name. Pure: text in memory; the command line writes it, and deploys it.
"""

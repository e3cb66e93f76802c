"""
Tools that come from elsewhere: agents, artifacts, client tools, skills, plugins, MCP and A2A
servers.
"""

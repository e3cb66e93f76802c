"""
Claude models through Anthropic's Messages API.
"""

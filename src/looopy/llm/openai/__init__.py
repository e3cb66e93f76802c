"""
Models behind OpenAI's two wire formats: chat completions and Responses.
"""

"""
One call of a tool: arguments checked, hooks asked, the tool run, one result whatever happens.
"""

"""Where a member's process runs: started once, watched, ended without survivors, its record kept until taken over."""

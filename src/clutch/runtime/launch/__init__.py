"""What comes after the rendezvous: the command of a member, started one way or another."""

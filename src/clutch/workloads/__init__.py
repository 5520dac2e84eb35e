"""What people run on the cluster: experiments, notebooks, reinforcement learning."""

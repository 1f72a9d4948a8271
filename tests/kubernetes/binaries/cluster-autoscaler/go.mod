// The kinds of the Cluster Autoscaler, whose program no registry serves. There is no Go code.
module fairlead/testcluster/cluster-autoscaler

go 1.26.0

require k8s.io/autoscaler/cluster-autoscaler/apis v0.0.0-20240830133931-adfbe7e45277 // indirect

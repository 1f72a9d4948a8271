// The kinds of controllers that are not built here, for tests/kubernetes/testcluster. There is no Go code.
module fairlead/testcluster/kinds

go 1.26.0

require (
	github.com/kedacore/keda/v2 v2.21.0
	knative.dev/serving v0.50.0
)

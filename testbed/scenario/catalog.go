package scenario

// All lists the scenarios.
func All() []Scenario {
	return []Scenario{
		provisionScenario(), clockScenario("clock-past", 2000), clockScenario("clock-future", 2090), undionlyScenario(),
		refuseScenario(), discoverScenario(),
		wrongDiskScenario(), ambiguousDiskScenario(),
		tamperedImageScenario(), truncatedImageScenario(), tooLargeImageScenario(), http503Scenario(),
		twoMachinesScenario(), duplicateUUIDScenario(),
		floodScenario(), hostileScenario(), stolenScriptScenario(), cancelScenario(), crashApplianceScenario(), crashAgentScenario(),
	}
}
